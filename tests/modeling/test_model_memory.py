"""A model that no memory holds is refused before it is built."""

from pathlib import Path

import pytest
import torch
from torch import nn

from contracts.config import convert
from contracts.errors import ConfigError
from contracts.schema import FeatureSchema
from modeling import model_memory
from modeling.model_memory import available_memory, require_memory

GIB = 2**30


@pytest.fixture
def schema() -> FeatureSchema:
    """A table that two features share, one of an ad alone, and the implied one of an age."""
    fields = {"ad": {"kind": "categorical", "table": "ad"}, "time": {"kind": "age", "buckets": 16, "dim": 4}}
    data = {
        "tasks": ["click"],
        "objectives": {"click": "click"},
        "tables": {"ad": {"dim": 8, "buckets": 64}, "tag": {"dim": 4, "buckets": 32}},
        "features": {
            "clicks": {"side": "query", "kind": "sequence", "max_length": 5, "fields": fields},
            "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
            "tag": {"side": "ad", "kind": "categorical", "table": "tag"},
        },
    }
    return convert(data, FeatureSchema, source="schema")


def bytes_of_training(*, parameters: int, weights: int, rows: int) -> int:
    return 16 * parameters + 4 * weights + 4 * rows


def test_the_limit_is_what_weights_and_optimisers_take(schema: FeatureSchema, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = nn.Linear(10, 3)
    needed = bytes_of_training(parameters=33, weights=64 * 8 + 32 * 4 + 16 * 4, rows=64 + 32 + 16)
    monkeypatch.setattr(model_memory, "available_memory", lambda: needed)
    require_memory(dense, schema, ("query", "ad"))
    monkeypatch.setattr(model_memory, "available_memory", lambda: needed - 1)
    with pytest.raises(
        ConfigError, match=r"33 parameters of dense layers and 704 of tables need 0\.0 GiB to be trained"
    ):
        require_memory(dense, schema, ("query", "ad"))
    monkeypatch.setattr(model_memory, "available_memory", lambda: None)
    require_memory(dense, schema, ("query", "ad"))


def test_a_side_that_is_not_read_takes_nothing(schema: FeatureSchema, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = bytes_of_training(parameters=0, weights=64 * 8 + 32 * 4, rows=64 + 32)
    monkeypatch.setattr(model_memory, "available_memory", lambda: needed)
    require_memory(nn.Identity(), schema, ("ad",))
    with pytest.raises(ConfigError):
        require_memory(nn.Identity(), schema, ("query", "ad"))


def test_layers_without_storage_count_as_they_would_be_built(schema: FeatureSchema) -> None:
    with torch.device("meta"):
        dense = nn.Linear(2**20, 2**20)
    with pytest.raises(ConfigError, match=r"need 16,384\.0 GiB to be trained, [\d,.]+ GiB of memory are available"):
        require_memory(dense, schema, ("ad",))


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 8 * GIB), (str(3 * GIB), 2 * GIB + 7), (str(GIB // 2), 7), (str(99 * GIB), 8 * GIB)]
)
def test_a_container_has_a_limit_of_its_own(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"memory.max": limit, "memory.current": str(min(GIB, int(limit) if limit != "max" else GIB))}
    for name, text in (files | {"memory.stat": "anon 5\nfile 7"}).items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(model_memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(model_memory, "_available_in_system", lambda: 8 * GIB)
    assert available_memory() == expected
