"""Metrics of what serves now, over all processes of the host: read from their states, so that nothing lingers."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from contracts.release import UpdatePosition
from engines.device_memory import DeviceMemory
from service.ages import catalogue_moment
from service.process_state import ProcessBoard, ProcessState, ReleaseState
from service.releases import LoadedRelease

TELL_S = 0.25
"""How often a process tells the others what it serves, and what it has counted."""


@dataclass(frozen=True)
class _PerScenario:
    """A gauge of each scenario; of several processes the one ``over`` that alarms first."""

    name: str
    text: str
    value: Callable[[ReleaseState], float]
    over: Callable[[Iterable[float]], float]


_PER_SCENARIO = (
    _PerScenario("update_position", "Number of the last update in effect.", lambda one: one.update_position, min),
    _PerScenario(
        "updates_waiting",
        "Numbers of the log that are not in effect yet; at least as many as updates, since numbers may leap.",
        lambda one: one.updates_waiting,
        max,
    ),
    _PerScenario(
        "update_applied_timestamp_seconds",
        "When the last update came into effect on this host, Unix time; 0 before the first.",
        lambda one: one.update_applied,
        min,
    ),
    _PerScenario(
        "update_log_damaged_lines",
        "Lines of the log of updates that could not be read; what they said is lost.",
        lambda one: one.log_damaged,
        max,
    ),
    _PerScenario("overlay_rows", "New and changed ads beside the index.", lambda one: one.overlay_rows, max),
    _PerScenario(
        "content_dropped",
        "New and changed ads that could not be embedded, since the overlay was begun.",
        lambda one: one.content_dropped,
        max,
    ),
    _PerScenario("ads_taken_down", "Ads that updates have taken down.", lambda one: one.taken_down, max),
    _PerScenario(
        "ads_without_budget",
        "Ads that have used up their budget; of one that is taken down too the takedown alone counts.",
        lambda one: one.without_budget,
        max,
    ),
    _PerScenario(
        "index_watermark_timestamp_seconds",
        "Latest moment of the catalogue in the serving index, Unix time.",
        lambda one: one.watermark,
        min,
    ),
    _PerScenario(
        "index_age_seconds",
        "Age of the catalogue in the serving index, at this scrape; 0 where its moment is yet to come.",
        lambda one: max(0.0, time.time() - one.catalogue),
        max,
    ),
    _PerScenario("index_old", "1 where the index is older than max_index_age_h.", lambda one: one.is_old, max),
    _PerScenario(
        "release_age_seconds",
        "Since when the serving release serves, at this scrape.",
        lambda one: max(0.0, time.time() - one.loaded_at),
        max,
    ),
)
_RELEASE = ("scenario", "release", "two_tower", "index", "heavy")


class ServingMetrics(Collector):
    """Gauges of what the processes of a host serve.

    Args:
        board: Tells of the other processes.
    """

    def __init__(self, board: ProcessBoard) -> None:
        self._board, self._own = board, ProcessState()
        self._changing = threading.Lock()
        self._listens, self._was_ready = False, False
        self._sample: Callable[[], tuple[bool, int]] = lambda: (False, 0)
        self._device = DeviceMemory()

    def watch(self, sample: Callable[[], tuple[bool, int]]) -> None:
        """Ask this now and then: whether the process is ready, and how many calls wait for the heavy ranker."""
        self._sample = sample

    def watch_device(self, memory: DeviceMemory) -> None:
        """Tell of what this process has on its GPU."""
        self._device = memory

    def tell(self) -> None:
        """Let the other processes know."""
        self._board.post(self._current())

    def loaded(self, loaded: LoadedRelease, at: float) -> None:
        """Note which release serves a scenario now, and since when."""
        versions = loaded.versions
        state = ReleaseState(
            scenario=loaded.scenario,
            release=loaded.release.release_id,
            two_tower=versions.two_tower,
            index=versions.index,
            heavy=versions.heavy or "",
            loaded_at=at,
            watermark=loaded.watermark.timestamp(),
            catalogue=catalogue_moment(loaded).timestamp(),
            engines=engines_of(loaded),
            batched=batched_of(loaded),
        )
        with self._changing:
            self._note(_with_updates(state, loaded, None))

    def updated(self, loaded: LoadedRelease, end: UpdatePosition | None, *, is_old: bool = False) -> None:
        """Note how far the updates of the day are in effect, and whether the index is older than it may be."""
        with self._changing:
            state = self._own.releases.get(loaded.scenario)
            if state is not None and state.release == loaded.release.release_id:
                self._note(msgspec.structs.replace(_with_updates(state, loaded, end), is_old=is_old))

    def runs(self, heavies: Mapping[str, str]) -> None:
        """Note the engines of the heavy rankers that this process runs for other hosts, by version."""
        with self._changing:
            self._own = msgspec.structs.replace(self._own, heavies=dict(heavies))

    def log_readable(self, is_readable: bool) -> None:
        """Note whether the log of updates can be read."""
        with self._changing:
            self._own = msgspec.structs.replace(self._own, log_readable=is_readable)

    def _note(self, state: ReleaseState) -> None:
        releases = self._own.releases | {state.scenario: state}
        self._own = msgspec.structs.replace(self._own, releases=releases)

    def _current(self) -> ProcessState:
        ready, heavy_waiting = self._sample()
        self._was_ready |= ready
        loading = self._listens and not self._was_ready
        held, limit = self._device.held(), self._device.limit_bytes
        return msgspec.structs.replace(
            self._own, ready=ready, loading=loading, heavy_waiting=heavy_waiting, device_held=held, device_limit=limit
        )

    def siblings_serve(self) -> bool:
        """Whether another process of this host is ready."""
        return any(state.ready for state in self._board.others())

    def listens(self) -> None:
        """Note that this process takes requests from now on."""
        self._listens = True
        self.tell()

    @property
    def num_loading(self) -> int:
        """Other processes that take requests of this host and were never ready."""
        return sum(state.loading for state in self._board.others())

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """All gauges, as prometheus_client asks for them."""
        states = [self._current(), *self._board.others()]
        releases = [release for state in states for release in state.releases.values()]
        yield _gauge("processes", "Processes of this host that answer.", len(states))
        yield _gauge("ready_processes", "Of these, the ready ones.", sum(state.ready for state in states))
        waiting = sum(state.heavy_waiting for state in states)
        yield _gauge("heavy_waiting", "Calls that wait for the heavy ranker.", waiting)
        read = [state.log_readable for state in states if state.log_readable is not None]
        if read:
            yield _gauge("update_log_readable", "0 where the log of updates cannot be read or is gone.", min(read))
        yield from _device(states)
        yield _heavies(states)
        yield _release_loaded(releases)
        yield _engines(releases)
        yield _batched(releases)
        for gauge in _PER_SCENARIO:
            yield _per_scenario(gauge, releases)


def _with_updates(state: ReleaseState, loaded: LoadedRelease, end: UpdatePosition | None) -> ReleaseState:
    live, notes = loaded.live, loaded.live.notes
    seq = 0 if live.position is None else live.position.seq
    return msgspec.structs.replace(
        state,
        update_position=seq,
        updates_waiting=0 if end is None else max(0, end.seq - seq),
        update_applied=notes.applied_at,
        log_damaged=notes.damaged,
        overlay_rows=live.num_rows - len(loaded.index),
        content_dropped=notes.dropped,
        taken_down=notes.taken_down,
        without_budget=notes.without_budget,
    )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"adsieve_{name}", text, value=value)


def _release_loaded(releases: Sequence[ReleaseState]) -> GaugeMetricFamily:
    text = "When the serving release was loaded, Unix time; several of a scenario while processes change."
    family = GaugeMetricFamily("adsieve_release_loaded_timestamp_seconds", text, labels=_RELEASE)
    loaded: dict[tuple[str, ...], float] = {}
    for one in releases:
        labels = (one.scenario, one.release, one.two_tower, one.index, one.heavy)
        loaded[labels] = min(one.loaded_at, loaded.get(labels, one.loaded_at))
    for key, at in sorted(loaded.items()):
        family.add_metric(key, at)
    return family


def _engines(releases: Sequence[ReleaseState]) -> GaugeMetricFamily:
    labels = ("scenario", "model", "engine")
    family = GaugeMetricFamily("adsieve_engine_info", "1 for the engine that runs a model.", labels=labels)
    for scenario, model, engine in sorted(
        {(one.scenario, model, engine) for one in releases for model, engine in one.engines.items()}
    ):
        family.add_metric((scenario, model, engine), 1)
    return family


def _device(states: Sequence[ProcessState]) -> Iterable[GaugeMetricFamily]:
    """No samples where no process has anything on a GPU, or a budget for it."""
    text = "Memory that the processes of this host hold on GPUs, by what for."
    held = GaugeMetricFamily("adsieve_device_memory_bytes", text, labels=("what",))
    for what in sorted({what for state in states for what in state.device_held}):
        held.add_metric((what,), sum(state.device_held.get(what, 0) for state in states))
    yield held
    limits = [state.device_limit for state in states if state.device_limit is not None]
    limit = GaugeMetricFamily("adsieve_device_memory_limit_bytes", "Most that they may hold, all together.")
    if limits:
        limit.add_metric((), sum(limits))
    yield limit


def engines_of(loaded: LoadedRelease) -> dict[str, str]:
    """What runs each model of a release, and where its light stage runs."""
    engines = {"query_tower": loaded.tower.engine, "light": "cpu" if loaded.device is None else "cuda"}
    return engines | ({"heavy": loaded.heavy.engine} if loaded.heavy else {})


def batched_of(loaded: LoadedRelease) -> dict[str, bool]:
    """Whether requests share calls of each model of a release that is run here."""
    batched = {"query_tower": loaded.batches_queries}
    if loaded.heavy is not None and loaded.heavy.batches is not None:
        batched["heavy"] = loaded.heavy.batches
    return batched


def _batched(releases: Sequence[ReleaseState]) -> GaugeMetricFamily:
    text = "1 where requests that wait share calls of a model, 0 where each has its own."
    family = GaugeMetricFamily("adsieve_batching", text, labels=("scenario", "model"))
    found = {(one.scenario, model): value for one in releases for model, value in one.batched.items()}
    for key, value in sorted(found.items()):
        family.add_metric(key, value)
    return family


def _heavies(states: Sequence[ProcessState]) -> GaugeMetricFamily:
    labels, text = ("version", "engine"), "1 for the engine of a heavy ranker that is run here for other hosts."
    family = GaugeMetricFamily("adsieve_heavy_engine_info", text, labels=labels)
    for engine in sorted({engine for state in states for engine in state.heavies.items()}):
        family.add_metric(engine, 1)
    return family


def _per_scenario(gauge: _PerScenario, releases: Sequence[ReleaseState]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"adsieve_{gauge.name}", gauge.text, labels=("scenario",))
    for scenario in sorted({one.scenario for one in releases}):
        family.add_metric((scenario,), gauge.over(gauge.value(one) for one in releases if one.scenario == scenario))
    return family
