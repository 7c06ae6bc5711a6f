"""Publishes a release after a replay of saved requests: beyond the limits it is refused, or overridden on record."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts.bundle import open_bundle
from contracts.errors import AdsieveError, ArtifactError, MismatchError, WrongArtifactError
from contracts.release import IndexManifest, Judgement, Release, check_pairing
from indexing.catalog_change import catalog_change
from indexing.index import Index
from indexing.release_limits import ReleaseLimits, failures
from indexing.replay import LightReplay, Replay, replay_light
from indexing.replay_heavy import HeavyReplay, replay_heavy
from indexing.store_files import other_log, require_updates
from indexing.store_recovery import usable_pointer
from indexing.stores import Store
from indexing.update_warnings import damage


class ReleaseRefused(AdsieveError):
    """A release is beyond the limits; every figure is on a line of its own."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What shall be released, as files: a two-tower bundle, a heavy bundle or none, and their index."""

    two_tower: Path
    heavy: Path | None
    index: Path


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Outcome of a replay, before anything was changed."""

    scenario: str
    metrics: dict[str, float]
    judgement: Judgement

    @property
    def is_refused(self) -> bool:
        """Whether something is beyond its limit and no override says otherwise."""
        return bool(self.judgement.failures) and self.judgement.override is None

    def lines(self) -> list[str]:
        """For people."""
        against = self.judgement.against or "nothing, it is the first release"
        found = [f"replay: {self.metrics['requests']:,.0f} saved requests of {self.scenario}, against {against}"]
        found += [f"  {name} {value:.4g}" for name, value in self.metrics.items() if name != "requests"]
        found += [f"  warning: {warning}" for warning in self.judgement.warnings]
        found += [f"  not judged: {reason}" for reason in self.judgement.skipped]
        return found + [f"  {failure}" for failure in self.judgement.failures]


def publish_release(
    store: Store, candidate: Candidate, *, limits: ReleaseLimits | None = None, override: str | None = None
) -> Release:
    """Verify bundles and index together, replay saved requests, and make them the current release.

    Args:
        store: Where.
        candidate: What.
        limits: To be kept.
        override: Reason for which a release beyond the limits is published all the same.

    Raises:
        ReleaseRefused: It is beyond a limit; nothing was changed.
        ArtifactError, MismatchError: As of ``DirectoryStore.publish``, and where the release cannot be replayed.
    """
    judged = judge(store, candidate, limits or ReleaseLimits(), override)
    if judged.is_refused:
        text = "\n".join([f"refused, {len(judged.judgement.failures)} of the checks failed", *judged.lines()])
        raise ReleaseRefused(
            f'{text}\nnothing was published; --override "REASON" publishes it all the same, on record',
            next_step=_remedy(judged.judgement.failures),
        )
    return store.publish(
        two_tower=candidate.two_tower,
        heavy=candidate.heavy,
        index=candidate.index,
        metrics=judged.metrics,
        judgement=judged.judgement,
    )


def _remedy(failures: Sequence[str]) -> str:
    """What to look at first; ads that the index lacks make every other figure one of the few that are left."""
    if any(failure.startswith("unknown_share") for failure in failures):
        return (
            "compare the ads in requests.jsonl of the two-tower bundle with the catalogue: they have other ids there, "
            "or another scenario, which this index leaves out"
        )
    return "docs/how-to/releases.md tells what each figure is; `adsieve index publish --help` tells of --limits"


def judge(store: Store, candidate: Candidate, limits: ReleaseLimits, override: str | None = None) -> Judged:
    """Replay a candidate and hold it against the limits; changes nothing.

    Raises:
        ReleaseRefused: Its probabilities are no numbers, which no override publishes.
        ArtifactError: A part is damaged or cannot be replayed, or the updates that the index lacks are gone.
        WrongArtifactError: The parts do not belong together.
    """
    bundle = open_bundle(candidate.two_tower, kind="two_tower")
    heavy = open_bundle(candidate.heavy, kind="heavy") if candidate.heavy is not None else None
    index = Index.open(candidate.index)
    try:
        check_pairing(bundle.manifest, heavy.manifest if heavy is not None else None, index.manifest)
    except MismatchError as error:
        raise WrongArtifactError(str(error)) from error
    require_updates(store.update_log(), index.manifest)
    light = LightReplay(bundle, index)
    current, skipped = _current(store, index.scenario)
    change = None if current is None else catalog_change(index, current[1].index, store.update_log())
    serving = current[1] if current is not None else None
    found = [replay_light(light, serving, survivors=limits.survivors)]
    if heavy is not None:
        found.append(replay_heavy(light, HeavyReplay(heavy), min_requests=limits.min_requests))
    metrics = _merged(found) | (change.metrics if change is not None else {})
    if metrics.pop("not_finite"):
        raise ReleaseRefused(f"{candidate.index}: light probabilities are no numbers; no override publishes that")
    switched_off, told = _heavy_lost(store, candidate, index.manifest)
    failed = [*failures(limits, metrics), *switched_off]
    return Judged(
        scenario=index.scenario,
        metrics=metrics,
        judgement=Judgement(
            against=current[0].release_id if current is not None else None,
            limits=msgspec.to_builtins(limits),
            failures=failed,
            warnings=[
                *damage(store.local.update_log()),
                *(change.warnings() if change is not None else ()),
                *told,
                *other_log(store.local.update_log(), index.manifest),
            ],
            skipped=[*skipped, *(reason for one in found for reason in one.skipped)],
            override=override if failed else None,
        ),
    )


def _current(store: Store, scenario: str) -> tuple[tuple[Release, LightReplay] | None, list[str]]:
    """What serves, opened to be compared with; where it is damaged the publish that repairs it goes on without."""
    try:
        release = store.current(scenario)
        if release is None:
            return None, []
        paths = store.paths(release)
        bundle = open_bundle(paths.two_tower, kind="two_tower")
        return (release, LightReplay(bundle, Index.open(paths.index))), []
    except ArtifactError as error:
        return None, [f"overlap and calibration_current (the current release cannot be opened: {error})"]


def _serving(store: Store, scenario: str) -> Release | None:
    """What serves, also by a pointer that is lost or damaged and that the publish restores."""
    try:
        pointer = usable_pointer(store.local.root, scenario)
        return None if pointer is None else store.release(scenario, pointer.release)
    except ArtifactError:  # told where it is compared
        return None


def _heavy_lost(store: Store, candidate: Candidate, index: IndexManifest) -> tuple[list[str], list[str]]:
    """What fails, and what is told, where a release would switch off the heavy ranker of the one that serves.

    An index with a block for one was built with it, so that its bundle was most likely forgotten.
    """
    serving = _serving(store, index.scenario) if candidate.heavy is None else None
    if serving is None or serving.heavy is None:
        return [], []
    found = f"no heavy bundle, while {serving.release_id}, which serves, ranks with {serving.heavy}"
    if index.heavy_ad_fingerprint is None:
        return [], [f"{found}: the release ends with the towers"]
    return [f"{found}, and the index has a block for one: give --heavy"], []


def _merged(replays: list[Replay]) -> dict[str, float]:
    return {name: value for replay in replays for name, value in replay.metrics.items()}
