"""The releases of each scenario with what their manifests say, for the console."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from contracts.artifact import read_manifest
from contracts.bundle import BundleManifest
from contracts.errors import AdsieveError, ArtifactError
from contracts.release import IndexManifest
from indexing.listing import Listed, listed, recorded
from service.console_api import ConsoleRelease, ConsoleReleases, ConsoleScenario
from service.follower import Follower
from service.serving_metrics import engines_of
from service.status import readiness

MAX_RELEASES = 20
"""Releases of a scenario that are told."""

MAX_METRICS = 60
"""Metrics of a bundle that are told."""

Manifest = TypeVar("Manifest", BundleManifest, IndexManifest)


def console_releases(follower: Follower, *, may_roll_back: bool) -> ConsoleReleases:
    """Everything that the console shows of releases; reads the store."""
    told = readiness(follower)
    names = sorted({*follower.store.scenarios(), *follower.snapshot.releases})
    return ConsoleReleases(
        may_roll_back=may_roll_back,
        scenarios=[_scenario(follower, name) for name in names],
        refused=told.refused,
        faults=told.faults,
    )


def _scenario(follower: Follower, scenario: str) -> ConsoleScenario:
    loaded, now, error = follower.snapshot.releases.get(scenario), datetime.now(UTC), None
    try:
        found = listed(follower.store, scenario, now)
    except AdsieveError as failure:
        error, found = str(failure), recorded(follower.store, scenario, now)
    serving = loaded.release.release_id if loaded else None
    return ConsoleScenario(
        scenario=scenario,
        serving=serving,
        loaded_at=follower.loaded_at.get(scenario),
        engines=engines_of(loaded) if loaded else {},
        num_ads=loaded.index.manifest.num_ads if loaded else 0,
        overlay_rows=loaded.live.num_rows - len(loaded.index) if loaded else 0,
        current=next((one.release.release_id for one in found if one.state == "current"), None),
        rollback_to=next((one.release.release_id for one in found if one.state == "earlier"), None),
        releases=[_release(follower, one, serving) for one in found[:MAX_RELEASES]],
        omitted=max(0, len(found) - MAX_RELEASES),
        error=error,
    )


def _release(follower: Follower, one: Listed, serving: str | None) -> ConsoleRelease:
    release, paths = one.release, follower.store.paths(one.release)
    tower = _manifest(paths.two_tower, BundleManifest)
    heavy = None if paths.heavy is None else _manifest(paths.heavy, BundleManifest)
    index = _manifest(paths.index, IndexManifest)
    return ConsoleRelease(
        release_id=release.release_id,
        number=release.number,
        state=one.state,
        is_serving=release.release_id == serving,
        pinned=one.pinned,
        created_at=release.created_at,
        age_s=one.age_s,
        watermark=one.watermark,
        watermark_age_s=one.watermark_age_s,
        two_tower=release.two_tower,
        heavy=release.heavy,
        index=release.index,
        num_ads=None if index is None else index.num_ads,
        two_tower_metrics={} if tower is None else flat(tower.metrics),
        heavy_metrics={} if heavy is None else flat(heavy.metrics),
        retrieval_recall={} if index is None else flat(index.retrieval_recall),
        index_warnings=[] if index is None else index.warnings[:MAX_METRICS],
        replay=release.metrics,
        judgement=release.judgement,
    )


def _manifest(path: Path, kind: type[Manifest]) -> Manifest | None:
    try:
        return read_manifest(path, kind)
    except (ArtifactError, msgspec.DecodeError):
        return None


def flat(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Nested metrics by dotted names; what is no number is left out, but for null.

    Example:
        >>> flat({"click": {"auc": 0.5, "rows": 3}, "kl": None, "note": "x"})
        {'click.auc': 0.5, 'click.rows': 3, 'kl': None}
    """
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": number for inner, number in flat(value).items()}
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            found[name] = value
    return dict(list(found.items())[:MAX_METRICS])
