"""What a build remembers of engines: it spares comparing, never the check of what an engine computes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.bundle import Bundle, open_bundle
from engines.names import EXACT_ENGINE
from indexing import pin_engine
from indexing.pin_engine import choose_pin_engine, pin_memory
from towers.serving import TwoTowerServing


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("engines.memory.cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def bundle(bundles: Path) -> Bundle:
    return open_bundle(bundles / "two_tower")


def test_the_first_build_compares_and_the_next_takes_what_it_found(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = TwoTowerServing.load(bundle, threads=1).ad_lookup
    memory = pin_memory(bundle, threads=1)
    assert memory.recall() is None
    first, _ = choose_pin_engine(bundle, lookup, memory=memory)
    assert memory.recall() == first
    tried: list[list[str]] = []
    select = pin_engine.select_pin_engine

    def counted(bundle: Bundle, lookup: object, names: list[str], **options: object) -> object:
        tried.append(list(names))
        return select(bundle, lookup, names, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pin_engine, "select_pin_engine", counted)
    assert choose_pin_engine(bundle, lookup, memory=pin_memory(bundle, threads=1))[0] == first
    assert tried == [[first]]


def test_a_remembered_engine_that_cannot_serve_is_replaced_by_one_that_can(bundle: Bundle) -> None:
    lookup, memory = TwoTowerServing.load(bundle, threads=1).ad_lookup, pin_memory(bundle, threads=1)
    memory.note("torch_cuda")
    name, _ = choose_pin_engine(bundle, lookup, memory=memory)
    assert name != "torch_cuda"
    assert memory.recall() == name


def test_a_name_that_is_asked_for_is_neither_recalled_nor_noted(bundle: Bundle) -> None:
    lookup, memory = TwoTowerServing.load(bundle, threads=1).ad_lookup, pin_memory(bundle, threads=1)
    memory.note("openvino_fp32")
    assert choose_pin_engine(bundle, lookup, name=EXACT_ENGINE, memory=memory)[0] == EXACT_ENGINE
    assert memory.recall() == "openvino_fp32"


def test_another_shape_and_other_threads_have_a_memory_of_their_own(
    bundle: Bundle, make_two_tower: Callable, tmp_path: Path
) -> None:
    paths = {pin_memory(bundle, threads=threads).path for threads in (1, 2)}
    assert len(paths) == 2
    again = make_two_tower(tmp_path / "again")
    assert pin_memory(again, threads=1).path in paths  # other weights of one shape
    wider = Bundle(path=bundle.path, manifest=bundle.manifest, schema=bundle.schema, config={"head_dim": 99})
    assert pin_memory(wider, threads=1).path not in paths
