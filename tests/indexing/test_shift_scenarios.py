"""An index of one scenario raises no alarm by a profile over all of them, unless no mixture explains what is found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from contracts.artifact import FileEntry
from contracts.bundle import Bundle
from contracts.encoding import Encoder
from indexing.shift import ad_profile, shift_warnings
from modeling.profile import side_profile

SCHEMA = {
    "version": 1,
    "tasks": ["click"],
    "objectives": {"click": "click"},
    "tables": {"scenario": {"dim": 2, "vocabulary": ["shopping", "standard"]}},
    "features": {
        "scenario": {"side": "ad", "kind": "categorical", "table": "scenario"},
        "price": {"side": "ad", "kind": "dense", "transform": "log1p", "default": 1.0},
        "margin": {"side": "ad", "kind": "dense", "default": 0.0},
    },
}


def ads(num_ads: int, shopping: float, *, no_margin: float = 0.0) -> pa.Table:
    """Ads of which a share is of shopping: only these have a price, and higher margins."""
    rng = np.random.default_rng(num_ads)
    of_shopping = rng.random(num_ads) < shopping
    margin = rng.normal(size=num_ads) + 5 * of_shopping
    return pa.table(
        {
            "scenario": np.where(of_shopping, "shopping", "standard").tolist(),
            "price": pa.array(rng.random(num_ads), mask=~of_shopping),
            "margin": pa.array(margin, mask=rng.random(num_ads) < no_margin),
        }
    )


@pytest.mark.parametrize("scenario", [None, "shopping"])
def test_a_model_of_all_scenarios_is_compared_by_shares_alone(
    make_heavy: Callable[..., Bundle], tmp_path: Path, scenario: str | None
) -> None:
    bundle = _profiled(make_heavy(tmp_path / "heavy", scenario=scenario, schema=SCHEMA), ads(4000, 0.5))
    found = _warnings(bundle, ads(2000, 1.0))
    if scenario is not None:  # of its own scenario this is a shift, and told
        assert any("margin: mean" in line for line in found)
        assert any("scenario: values spread otherwise than in training" in line for line in found)
    else:
        assert found == []
        assert _warnings(bundle, ads(2001, 0.0)) == []
        (lost,) = _warnings(bundle, ads(2002, 1.0, no_margin=0.4))
        assert lost.startswith("heavy margin: ")
        assert lost.endswith(" % missing, 0 % in training of all scenarios")


def _profiled(bundle: Bundle, table: pa.Table) -> Bundle:
    batch = Encoder(bundle.schema, "ad").encode(table)
    profile = {"ad": side_profile(bundle.schema, "ad", batch.encoded, batch.coverage)}
    (bundle.path / "profile.json").write_bytes(msgspec.json.encode(profile))
    files = {**bundle.manifest.files, "profile.json": FileEntry(sha256="", bytes=0)}
    return replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, files=files))


def _warnings(bundle: Bundle, table: pa.Table) -> list[str]:
    profile: Any = ad_profile(bundle)
    batch = Encoder(bundle.schema, "ad").encode(table)
    counts = profile.count(batch.encoded, np.ones(len(table), bool))
    return shift_warnings("heavy", profile.report(counts, batch.coverage))
