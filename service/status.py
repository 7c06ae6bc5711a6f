"""What /health/ready, /releases and the admin routes tell and take."""

import msgspec

from contracts.release import Release
from indexing.overlay_header import Notes
from service.device_engines import DeviceEngines
from service.faults import Failure
from service.follower import Follower
from service.serving_metrics import engines_of


class RollbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scenario whose pointer goes one release back.

    ``current`` is the release that the caller takes for the current one: where another is, nothing moves (409).
    """

    scenario: str
    current: str | None = None


class RefusedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A release that could not be loaded. ``at`` is Unix time."""

    scenario: str
    release_id: str
    error: str
    at: float


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What stands against following the news of the store. ``at`` is Unix time."""

    what: str
    error: str
    at: float


class ServingRelease(msgspec.Struct, frozen=True, kw_only=True):
    """What serves one scenario, and what its pointer names: another one while that loads or where it was refused.

    ``update`` is the number of the last update in effect, ``overlay_rows`` the new and changed ads beside the index,
    ``taken_down`` and ``without_budget`` the ads that updates stop: of one that both stop the takedown counts.
    """

    scenario: str
    release_id: str | None
    two_tower: str | None
    heavy: str | None
    index: str | None
    num_ads: int
    watermark: str | None
    update: int | None
    overlay_rows: int
    taken_down: int
    without_budget: int
    loaded_at: float | None
    current: str | None
    available: list[str]


class SecondRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A release that the settings hold beside the one that serves, for a ``share`` of users (``arms``) or of requests
    (``shadows``). ``wanted`` is what they name; ``release_id`` is None while none of that name is loaded."""

    scenario: str
    kind: str
    wanted: str
    share: float
    release_id: str | None
    two_tower: str | None
    heavy: str | None
    index: str | None
    update: int | None


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """What this process has on its GPU, in bytes by what for, and the budget; None is no limit.

    ``plans_waiting`` are TensorRT plans that are being built; another engine serves meanwhile.
    """

    held: dict[str, int]
    limit_bytes: int | None
    plans_waiting: int


class Releases(msgspec.Struct, frozen=True, kw_only=True):
    """All scenarios of the store, what is held beside, the releases that were refused, and faults in following.

    ``engines`` are what runs each model of what serves, by scenario; ``device`` is what this process has on a GPU.
    """

    serving: list[ServingRelease]
    second: list[SecondRelease]
    refused: list[RefusedRelease]
    faults: list[Fault]
    engines: dict[str, dict[str, str]]
    device: DeviceState


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests are answered; refused releases and faults are told here even while an older release serves.

    ``loading`` are processes of this host that take requests already and were never ready, this one only while it loads
    the first releases of its scenarios; ``old`` are scenarios whose index is older than it may be, answered with a
    warning or refused by policy.
    """

    ready: bool
    loading: int
    serving: dict[str, str]
    old: list[str]
    refused: list[RefusedRelease]
    faults: list[Fault]


def readiness(follower: Follower, loading: int = 0) -> Readiness:
    """What the process serves, without asking the store."""
    serving = {name: loaded.release.release_id for name, loaded in follower.snapshot.releases.items()}
    return Readiness(
        ready=follower.is_ready and loading == 0 and not (serving and follower.refuses_all),
        loading=loading + follower.is_loading,
        serving=serving,
        old=follower.old,
        refused=_refused(follower.failures),
        faults=_faults(follower),
    )


def releases(follower: Follower) -> Releases:
    """What the process serves beside what the store holds; reads the store."""
    scenarios = sorted({*follower.store.scenarios(), *follower.snapshot.releases})
    return Releases(
        serving=[serving_release(follower, scenario) for scenario in scenarios],
        second=_second(follower),
        refused=_refused(follower.failures),
        faults=_faults(follower),
        engines={name: engines_of(loaded) for name, loaded in follower.snapshot.releases.items()},
        device=_device(follower.devices),
    )


def _device(devices: DeviceEngines) -> DeviceState:
    memory = devices.gpu.memory
    return DeviceState(held=memory.held(), limit_bytes=memory.limit_bytes, plans_waiting=devices.plans_waiting)


def serving_release(follower: Follower, scenario: str) -> ServingRelease:
    """One scenario; reads the store."""
    loaded = follower.snapshot.releases.get(scenario)
    position, notes = (loaded.live.position, loaded.live.notes) if loaded else (None, Notes())
    current: Release | None = follower.store.current(scenario)
    return ServingRelease(
        scenario=scenario,
        release_id=loaded.release.release_id if loaded else None,
        two_tower=loaded.release.two_tower if loaded else None,
        heavy=loaded.release.heavy if loaded else None,
        index=loaded.release.index if loaded else None,
        num_ads=loaded.index.manifest.num_ads if loaded else 0,
        watermark=loaded.index.manifest.watermark if loaded else None,
        update=position.seq if position else None,
        overlay_rows=loaded.live.num_rows - len(loaded.index) if loaded else 0,
        taken_down=notes.taken_down,
        without_budget=notes.without_budget,
        loaded_at=follower.loaded_at.get(scenario),
        current=current.release_id if current else None,
        available=[release.release_id for release in follower.store.list(scenario)],
    )


def _second(follower: Follower) -> list[SecondRelease]:
    snapshot, held = follower.snapshot, []
    for kind, scenario, wanted, share in follower.wanted_seconds:
        loaded = getattr(snapshot, kind).get(scenario)
        position = loaded.live.position if loaded else None
        held.append(
            SecondRelease(
                scenario=scenario,
                kind=kind,
                wanted=wanted,
                share=share,
                release_id=loaded.release.release_id if loaded else None,
                two_tower=loaded.release.two_tower if loaded else None,
                heavy=loaded.release.heavy if loaded else None,
                index=loaded.release.index if loaded else None,
                update=position.seq if position else None,
            )
        )
    return held


def _refused(failures: dict[str, Failure]) -> list[RefusedRelease]:
    return [
        RefusedRelease(scenario=scenario, release_id=failure.release_id, error=failure.error, at=failure.at)
        for scenario, failure in failures.items()
    ]


def _faults(follower: Follower) -> list[Fault]:
    return [Fault(what=what, error=failure.error, at=failure.at) for what, failure in sorted(follower.faults.items())]
