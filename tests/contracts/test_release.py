"""Bundles and indexes that do not belong together are refused, with both versions and the remedy."""

import msgspec
import pytest

from contracts.bundle import BundleManifest
from contracts.errors import MismatchError
from contracts.release import IndexManifest, Release, check_pairing

SHARED = {"dims": {}, "schema_fingerprint": "s", "libraries": {}, "watermark": "w", "files": {}, "created_at": "t"}
TWO_TOWER = BundleManifest(
    version="two_tower-shopping-1",
    kind="two_tower",
    scenario="shopping",
    tasks=["click", "conversion"],
    side_fingerprints={"query": "q", "ad": "a", "pair": "p"},
    **SHARED,
)
HEAVY = BundleManifest(
    version="heavy-all-1",
    kind="heavy",
    tasks=["click", "conversion"],
    side_fingerprints={"query": "hq", "ad": "ha", "pair": "hp"},
    **SHARED,
)
INDEX = IndexManifest(
    version="index-1",
    scenario="shopping",
    two_tower="two_tower-shopping-1",
    heavy="heavy-all-0",
    ad_fingerprint="a",
    heavy_ad_fingerprint="ha",
    tasks=["click", "conversion"],
    objectives=["click"],
    head_dim=4,
    precision="fp16",
    num_ads=1,
    catalog={},
    statuses={},
    dropped={},
    faults={},
    coverage={},
    watermark="w",
    files={},
    created_at="t",
)


def test_a_matching_set_passes_with_and_without_a_heavy_ranker() -> None:
    check_pairing(TWO_TOWER, HEAVY, INDEX)
    check_pairing(TWO_TOWER, None, INDEX)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"two_tower": "two_tower-shopping-0"},
            "index-1 was embedded by two_tower-shopping-0, expected two_tower-shopping-1; run",
        ),
        ({"scenario": "standard"}, "is of scenario standard, expected shopping"),
        ({"ad_fingerprint": "b"}, "has ad fingerprint b, expected a"),
        ({"heavy_ad_fingerprint": None}, "index-1 has no block for a heavy ranker; run .* heavy-all-1"),
        (
            {"heavy_ad_fingerprint": "hb"},
            "is of ad schema hb, expected ha; run `adsieve index build`",
        ),
    ],
)
def test_an_index_of_another_model_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(MismatchError, match=message):
        check_pairing(TWO_TOWER, HEAVY, msgspec.structs.replace(INDEX, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "two_tower"}, "heavy-all-1 is of kind 'two_tower', expected 'heavy'"),
        ({"scenario": "standard"}, "heavy-all-1 is of scenario 'standard', two-tower bundle .* of 'shopping'"),
        ({"tasks": ["click"]}, r"heavy-all-1 lacks the tasks \['conversion'\]"),
    ],
)
def test_a_heavy_bundle_that_cannot_serve_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(MismatchError, match=message):
        check_pairing(TWO_TOWER, msgspec.structs.replace(HEAVY, **changes), INDEX)


def test_a_release_survives_json() -> None:
    release = Release(release_id="r", scenario="shopping", two_tower="a", index="b", created_at="t")
    assert msgspec.json.decode(msgspec.json.encode(release), type=Release) == release
