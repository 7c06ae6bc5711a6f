"""A small index with its bundles, an overlay of it, and what the rules of updates say in plain Python."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_parts
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from contracts.bundle import Bundle, open_bundle
from contracts.release import UpdatePosition
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.live import LiveIndex
from indexing.nightly import build_index
from indexing.overlay_files import WITHDRAWN
from indexing.overlay_stops import Stops
from indexing.overlay_writer import OverlayWriter
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update

HERE, ELSEWHERE = "shopping", "standard"


@dataclass
class Built:
    """An index, the bundles that it was built with, and its catalogue by ad."""

    path: Path
    two_tower: Bundle
    heavy: Bundle
    catalogue: dict[str, dict[str, Any]]

    @property
    def index(self) -> Index:
        return Index.open(self.path, verify=False)


@dataclass
class Day:
    """One index with a log and an overlay."""

    built: Built
    directory: Path
    log: UpdateLog = field(init=False)
    merged: UpdatePosition | None = None

    def __post_init__(self) -> None:
        self.log = UpdateLog(self.directory / "updates")
        self.index = with_position(self.built.index, self.merged)
        self._writer: OverlayWriter | None = None

    @property
    def overlay(self) -> Path:
        return self.directory / "overlay"

    @property
    def writer(self) -> OverlayWriter:
        if self._writer is None:
            self._writer = self.new_writer()
        return self._writer

    def new_writer(self, **options: Any) -> OverlayWriter:
        log = UpdateLog(self.directory / "updates")
        stops = Stops(self.directory / "stops")
        parts = self.index, self.built.two_tower, self.built.heavy, log, self.overlay
        return OverlayWriter(*parts, stops=stops, **options)

    def restart(self) -> None:
        """Another process takes over."""
        self.writer.close()
        self._writer = None

    def apply(self) -> None:
        while self.writer.apply_pending():
            pass

    def open(self) -> LiveIndex:
        live = LiveIndex.open(self.index, self.built.two_tower.schema, self.overlay)
        if live is None:
            raise ValueError("no overlay was published")
        return live

    def after(self, *updates: Update) -> LiveIndex:
        """The index with these updates in effect too."""
        self.log.append(updates)
        self.apply()
        return self.open()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def with_position(index: Index, merged: UpdatePosition | None) -> Index:
    """The index as if it had been built after ``merged``; what a build merges is the catalogue's here."""
    return with_parts(index, manifest=replace(index.manifest, updates=merged))


@dataclass
class Ad:
    """What requests should see of an ad."""

    bid: float | None
    servable: bool
    withdrawn: str
    """``takedown`` or ``budget``, whatever the status; empty where neither."""
    content: Content | None
    """The newest by updates; None where the catalogue's row is."""


def expected(
    catalogue: dict[str, dict[str, Any]],
    updates: Sequence[Update],
    merged: int = 0,
    is_valid: Callable[[Content], bool] = lambda content: True,
) -> dict[str, Ad]:
    """The rules of updates over a whole log, an ad at a time, for all ads that are found."""
    updates = [update if update.seq else replace(update, seq=place) for place, update in enumerate(updates, 1)]
    ads: dict[str, Ad] = {}
    for ad_id in {*catalogue, *(update.ad_id for update in updates)}:
        row, mine = catalogue.get(ad_id), [update for update in updates if update.ad_id == ad_id]
        valid_from, scenario, content = (row["valid_from"] if row else -(10**18)), (HERE if row else None), None
        for update in mine:
            new = update.content
            if new is None or new.valid_from <= valid_from or (new.scenario == HERE and not is_valid(new)):
                continue
            valid_from, scenario, content = new.valid_from, new.scenario, new
        if scenario != HERE:
            continue

        def latest(name: str, default: Any, unset: Any, *, always: bool, of: Any = mine, row: Any = row) -> Any:
            said = [update for update in of if getattr(update, name) is not unset]
            if not said:
                return default
            last = said[-1]
            counts = always or row is None or last.seq > merged or last.at > row["valid_from"]
            return getattr(last, name) if counts else default

        status = latest("status", (row or {}).get("status") or "active", None, always=False)
        bid = latest("bid", (row or {}).get("bid"), UNSET, always=False)
        takedown = latest("takedown", False, None, always=True)
        budget = latest("budget", None, UNSET, always=True)
        spent = budget is not None and budget <= 0
        withdrawn = "takedown" if takedown else "budget" if spent else ""
        servable = status == "active" and not withdrawn
        ads[ad_id] = Ad(bid=bid, servable=servable, withdrawn=withdrawn, content=content)
    return ads


def seen(live: LiveIndex, ids: Sequence[str]) -> dict[str, tuple[float | None, bool, str]]:
    """Bid and servability of the ads that a look-up finds, and what withdrew them."""
    rows = live.lookup(ids)
    found = np.flatnonzero(rows >= 0)
    bids, servable, withdrawn = live.bids(rows[found]), live.servable(rows[found]), live.withdrawn(rows[found])
    return {
        ids[place]: (None if np.isnan(bid) else round(float(bid), 4), bool(is_servable), WITHDRAWN[why])
        for place, bid, is_servable, why in zip(found.tolist(), bids, servable, withdrawn, strict=True)
    }


def wanted(ads: dict[str, Ad]) -> dict[str, tuple[float | None, bool, str]]:
    """The same of a reference."""
    return {
        ad_id: (None if ad.bid is None else round(float(np.float32(ad.bid)), 4), ad.servable, ad.withdrawn)
        for ad_id, ad in ads.items()
    }


def merge(catalogue: dict[str, dict[str, Any]], updates: Sequence[Update], is_valid: Any) -> dict[str, dict[str, Any]]:
    """The catalogue that a build makes of another and of the log so far: content, and status and bid where later."""
    merged = {}
    for ad_id, ad in expected(catalogue, updates, 10**9, is_valid).items():
        row = dict(catalogue.get(ad_id) or {"ad_id": ad_id, "scenario": HERE})
        if ad.content is not None:
            new = ad.content
            about = {"advertiser_id": new.advertiser_id, "objective": new.objective, "valid_from": new.valid_from}
            row |= about | new.features
        stateless = [replace(update, takedown=None, budget=UNSET) for update in updates]
        ad = expected(catalogue, stateless, 10**9, is_valid)[ad_id]
        merged[ad_id] = row | {"bid": ad.bid, "status": "active" if ad.servable else "paused"}
    return merged


@pytest.fixture(scope="session")
def build(bundles: Path) -> Callable[[Path, pa.Table], Built]:
    """Builds the index of an ads table."""

    def make(directory: Path, table: pa.Table) -> Built:
        directory.mkdir(exist_ok=True)
        pq.write_table(table, directory / "ads.parquet")
        build_index(
            ads=str(directory / "ads.parquet"),
            two_tower=bundles / "two_tower",
            heavy=bundles / "heavy",
            out=directory / "index",
            config=IndexConfig(precision="fp32"),
        )
        times = table["valid_from"].cast(pa.int64()).to_pylist()
        rows = [row | {"valid_from": at} for row, at in zip(table.to_pylist(), times, strict=True)]
        return Built(
            path=directory / "index",
            two_tower=open_bundle(bundles / "two_tower"),
            heavy=open_bundle(bundles / "heavy"),
            catalogue={row["ad_id"]: row for row in rows if row["scenario"] == HERE},
        )

    return make


@pytest.fixture(scope="session")
def built(
    build: Callable[[Path, pa.Table], Built],
    ads_table: Callable[..., pa.Table],
    tmp_path_factory: pytest.TempPathFactory,
) -> Built:
    """An index of 64 ads of ``shopping``; a catalogue of 80."""
    return build(tmp_path_factory.mktemp("built"), ads_table(80))


@pytest.fixture
def day(built: Built, tmp_path: Path) -> Iterator[Day]:
    """A day without updates yet."""
    opened = Day(built, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def new_day(built: Built) -> Callable[..., Day]:
    """Makes a day in a directory."""
    return lambda directory, of=built, **options: Day(of, directory, **options)


@pytest.fixture(scope="session")
def rules() -> Any:
    """The reference: ``expected``, ``seen``, ``wanted``, ``merge``, and the scenario that is not the index's."""
    return SimpleNamespace(expected=expected, seen=seen, wanted=wanted, merge=merge, ELSEWHERE=ELSEWHERE)


@pytest.fixture(scope="session")
def content() -> Callable[..., Content]:
    """Content of an ad of ``shopping``, later than every catalogue."""

    def make(*, scenario: str = HERE, valid_from: int = 3 * 10**15, **features: Any) -> Content:
        given = {"category": "shoes", "price": 3.5, "image": [0.25, 0.5], **features}
        return Content(scenario=scenario, valid_from=valid_from, advertiser_id="advertiser-1", features=given)

    return make
