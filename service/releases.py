"""Releases in memory: opened, verified, and held together so that a request sees one whole state.

Shapes: A ads, H heads, D width of a head's vector.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from contracts import compiled
from contracts.bundle import PARITY_FILE, Bundle, open_bundle
from contracts.encoding import Encoded
from contracts.errors import ArtifactError, MismatchError
from contracts.release import Release, check_pairing
from contracts.schema import FeatureSchema
from contracts.utility import ObjectiveColumns
from engines.gpu import Gpu
from engines.names import EXACT_ENGINE
from engines.protocol import EngineNotNowError
from indexing.index import Index, Pins
from indexing.live import LiveIndex
from indexing.overlay_private import private_live_index
from indexing.retrieval_gpu import WORK_SPACE_BYTES as SEARCH_BYTES
from indexing.retrieval_gpu import has_gpu
from indexing.retriever import Retriever
from indexing.store import DirectoryStore
from indexing.store_files import ReleasePaths
from service.api import Versions
from service.engine_memory import engine_memory
from service.heavies import LoadedHeavy, load_heavy, missing_row
from towers.serving import TwoTowerServing, split_pin_embedding

if TYPE_CHECKING:
    from service.device_light import DeviceLight

log = logging.getLogger(__name__)

REQUESTS_FILE = "requests.jsonl"

Kind = Literal["releases", "arms", "shadows"]
"""What a snapshot holds releases for."""

OpenLive = Callable[[Index, Bundle, Bundle | None], LiveIndex]
"""Puts the updates of the day over an index that these bundles, two-tower and heavy, belong to."""


@dataclass(frozen=True, kw_only=True)
class ColdAd:
    """An ad of which nothing is known, for the policy that scores unknown ads.

    ``pins`` is one row as in an index, ``encoded`` one row for the heavy ranker.
    """

    pins: Pins
    encoded: Encoded | None


@dataclass(frozen=True, kw_only=True)
class LoadedRelease:
    """One release of one scenario, opened and paired. Never changes; a newer one replaces it.

    ``objectives`` gives the light head that an objective pays for, ``heavy_objectives``, with the same codes, the heavy
    one; ``index_objectives`` turns the index's codes into these. ``live`` is the index with the updates of the day in
    effect. ``known_features`` are dotted names that any of its models reads from a request, such as
    ``query.watch.time``; ``device`` scores pools where the vectors lie on a GPU; ``opened_at`` is Unix time,
    ``opened_on`` the same moment on the monotonic clock. ``batches_queries`` tells whether requests share calls of the
    query tower, ``tower_shape`` names what is as fast on its engine.
    """

    release: Release
    schema: FeatureSchema
    tower: TwoTowerServing
    live: LiveIndex
    heavy: LoadedHeavy | None
    objectives: ObjectiveColumns
    heavy_objectives: ObjectiveColumns
    index_objectives: np.ndarray
    cold: ColdAd
    retriever: Retriever
    known_features: frozenset[str]
    warm_up_requests: tuple[bytes, ...]
    device: "DeviceLight | None" = None
    batches_queries: bool = False
    tower_shape: str = ""
    opened_at: float = field(default_factory=time.time)
    opened_on: float = field(default_factory=time.monotonic)

    @cached_property
    def watermark(self) -> datetime:
        """Latest moment of the catalogue that the index was built from, UTC."""
        return datetime.fromisoformat(self.index.manifest.watermark)

    @property
    def index(self) -> Index:
        return self.live.index

    @property
    def scenario(self) -> str:
        return self.release.scenario

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.schema.tasks

    @cached_property
    def versions(self) -> Versions:
        return Versions(two_tower=self.release.two_tower, index=self.release.index, heavy=self.release.heavy)


@dataclass(frozen=True)
class Snapshot:
    """What serves at one moment, by scenario. A request takes it once and never looks for a newer one.

    ``arms`` are second releases for a share of the users, ``shadows`` those that only rank to be compared.
    """

    releases: Mapping[str, LoadedRelease] = field(default_factory=dict)
    arms: Mapping[str, LoadedRelease] = field(default_factory=dict)
    shadows: Mapping[str, LoadedRelease] = field(default_factory=dict)

    def loaded(self) -> list[LoadedRelease]:
        """Every release that is held, each once."""
        held = (*self.releases.values(), *self.arms.values(), *self.shadows.values())
        return list({id(loaded): loaded for loaded in held}.values())

    def served(self) -> list[LoadedRelease]:
        """Every release that answers some requests."""
        return [*self.releases.values(), *self.arms.values()]

    def with_release(self, loaded: LoadedRelease, kind: Kind = "releases") -> "Snapshot":
        """Serving what it served, but for this release of a scenario."""
        return replace(self, **{kind: dict(sorted({**getattr(self, kind), loaded.scenario: loaded}.items()))})

    def without(self, kind: Kind, scenario: str) -> "Snapshot":
        """Holding no second release of a scenario any more."""
        return replace(self, **{kind: {name: one for name, one in getattr(self, kind).items() if name != scenario}})

    def replacing(self, before: LoadedRelease, after: LoadedRelease) -> "Snapshot":
        """Holding another object wherever it held one."""
        return Snapshot(
            *(
                {name: after if loaded is before else loaded for name, loaded in held.items()}
                for held in (self.releases, self.arms, self.shadows)
            )
        )

    def with_engines(self, renewed: LoadedRelease) -> "Snapshot":
        """Holding the engines of a release wherever it holds that one; its overlay may be another by now."""
        snapshot = self
        for loaded in self.loaded():
            if loaded.release.release_id == renewed.release.release_id:
                after = replace(loaded, heavy=renewed.heavy, batches_queries=renewed.batches_queries)
                snapshot = snapshot.replacing(loaded, after)
        return snapshot


def load_release(
    release: Release,
    paths: ReleasePaths,
    *,
    serving: Snapshot,
    open_live: OpenLive,
    engine_threads: int,
    query_engine: str = EXACT_ENGINE,
    heavy_engine: str = EXACT_ENGINE,
    survivors: Sequence[int] = (),
    gpu: Gpu | None = None,
) -> LoadedRelease:
    """Open and verify everything that a release names.

    Args:
        paths: Where the store keeps its bundles and its index.
        serving: What serves now; a heavy ranker that it already holds is shared.
        open_live: Called once everything is checked; returns when the log of updates is in effect.
        engine_threads: Threads of one operator of one graph.
        query_engine: What runs the query tower: the name of an engine, or ``auto``.
        heavy_engine: The same of the heavy ranker; ``remote`` opens none, another host runs it.
        survivors: Numbers of survivors that most requests have, for which an engine may prepare.
        gpu: What engines and searches for a GPU run on; what cannot run there now runs on the CPU, with a warning.

    Raises:
        ArtifactError: Something is truncated or altered, or the engine does not reproduce the trained model.
        MismatchError: Bundles and index do not belong together, or are not the versions that the release names.
    """
    compiled.prepare()
    bundle = open_bundle(paths.two_tower, kind="two_tower")
    heavy_bundle = open_bundle(paths.heavy, kind="heavy") if paths.heavy is not None else None
    gpu = gpu or Gpu()
    index = _searched(Index.open(paths.index), gpu)
    check_pairing(bundle.manifest, heavy_bundle.manifest if heavy_bundle else None, index.manifest)
    _check_versions(release, bundle, heavy_bundle, index)
    tower = TwoTowerServing.load(bundle, threads=engine_threads)
    tower.check_parity(bundle.tensors(PARITY_FILE), source=str(bundle.path))
    memory = engine_memory("query tower", bundle, engine_threads)
    try:
        tower.choose_query_engine(bundle, query_engine, threads=engine_threads, gpu=gpu, memory=memory)
    except EngineNotNowError as error:
        log.warning("query tower %s runs on %s meanwhile: %s", release.two_tower, tower.engine, error)
    log.info("query tower %s runs on %s: %s", release.two_tower, tower.engine, "; ".join(map(str, tower.trials)))
    heavy = _heavy(heavy_bundle, serving, engine_threads, heavy_engine, survivors, gpu) if heavy_bundle else None
    objectives = ObjectiveColumns(bundle.schema.objectives, bundle.schema.tasks)
    index_objectives = objectives.from_other(index.manifest.objectives)
    live = open_live(index, bundle, heavy_bundle)
    return LoadedRelease(
        release=release,
        schema=bundle.schema,
        tower=tower,
        live=live,
        heavy=heavy,
        objectives=objectives,
        heavy_objectives=ObjectiveColumns(bundle.schema.objectives, heavy.tasks) if heavy else objectives,
        index_objectives=index_objectives,
        cold=_cold_ad(tower, heavy),
        retriever=Retriever(live, objectives, index_objectives),
        known_features=_known_features(bundle.schema) | (_known_features(heavy.schema) if heavy else frozenset()),
        warm_up_requests=_saved_requests(bundle),
        tower_shape=memory.path.stem,
    )


def _check_versions(release: Release, tower: Bundle, heavy: Bundle | None, index: Index) -> None:
    found = (tower.manifest.version, heavy.manifest.version if heavy else None, index.manifest.version)
    named = (release.two_tower, release.heavy, release.index)
    if found != named:
        raise MismatchError(f"release {release.release_id} names the versions {named}, the store holds {found}")


def _heavy(
    bundle: Bundle, serving: Snapshot, engine_threads: int, engine: str, survivors: Sequence[int], gpu: Gpu
) -> LoadedHeavy:
    for loaded in serving.loaded():
        if loaded.heavy is not None and loaded.heavy.version == bundle.manifest.version:
            return loaded.heavy
    return load_heavy(bundle, threads=engine_threads, engine=engine, survivors=survivors, gpu=gpu)


def _searched(index: Index, gpu: Gpu) -> Index:
    """The index, searched on a GPU where this machine has one with room for it."""
    if not has_gpu():
        return index
    nbytes = SEARCH_BYTES + sum(file.stat().st_size for file in (index.path / "retrieval").iterdir())
    try:
        gpu.memory.check("search", nbytes)
    except EngineNotNowError as error:
        log.warning("index %s is searched on the CPU: %s", index.manifest.version, error)
        return index
    moved = index.on_gpu()
    gpu.memory.hold(moved.retrieval, "search", nbytes)
    return moved


def _cold_ad(tower: TwoTowerServing, heavy: LoadedHeavy | None) -> ColdAd:
    vectors, bias = split_pin_embedding(tower.embed_ads(missing_row(tower.ad_encoder)))
    return ColdAd(pins=Pins(vectors, bias, None), encoded=missing_row(heavy.encoders.ad_encoder) if heavy else None)


def _known_features(schema: FeatureSchema) -> frozenset[str]:
    query, pair = schema.side_features("query"), schema.side_features("pair")
    fields = {f"query.{name}.{part}" for name, feature in query.items() for part in feature.fields or {}}
    return frozenset({f"query.{name}" for name in query} | {f"candidates.{name}" for name in pair} | fields)


def _saved_requests(bundle: Bundle) -> tuple[bytes, ...]:
    lines = bundle.file(REQUESTS_FILE).read_bytes().splitlines()
    requests = tuple(line for line in lines if line.strip())
    if not requests:
        raise ArtifactError(f"{bundle.path / REQUESTS_FILE}: holds no saved request to warm up with")
    return requests


def load_snapshot(store: DirectoryStore, *, engine_threads: int) -> Snapshot:
    """Load the current release of every scenario of a store, with all updates of its log in effect.

    The overlays are of this process alone and leave no file. The errors are those of ``load_release``.
    """
    snapshot = Snapshot()
    for scenario in sorted(store.scenarios()):
        release = store.current(scenario)
        if release is not None:
            loaded = load_release(
                release,
                store.paths(release),
                serving=snapshot,
                open_live=lambda index, two_tower, heavy: private_live_index(
                    index, two_tower, heavy, store.update_log()
                ),
                engine_threads=engine_threads,
            )
            snapshot = snapshot.with_release(loaded)
    return snapshot
