"""What ``benchmarks.soak`` serves: a small shop whose nightly job runs every minute, and its updates of the day.

Towers and heavy ranker are those of ``benchmarks.serving_world``, sealed anew for each release so that nothing of the
one before can be shared; the index is built by ``adsieve index build`` with the updates of the day merged.
"""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.serving_requests import BLOCK, SCENARIO, ads_block
from benchmarks.serving_world import LIMITS, WATERMARK, make_world
from contracts.bundle import Bundle, open_bundle, seal_bundle
from indexing.store import DirectoryStore
from indexing.update_parquet import read_parquet
from indexing.update_record import Content, Update

KEPT = 2
REPLAY_LIMITS = f"{LIMITS}max_unknown_share: null\n"
"""The saved requests name ads of a larger catalogue."""
STATES, CONTENTS = 20, 5
"""Updates of each kind in one lot."""


class Shop:
    """A store, and all that publishes to it.

    Args:
        directory: For everything.
        num_ads: Of the catalogue.
        world: One of ``benchmarks.serving_world``, whose bundles are taken; made unless given.
    """

    def __init__(self, directory: Path, num_ads: int, world: Path | None = None) -> None:
        self._directory, self.num_ads, self.num_releases = directory, num_ads, 0
        if world is None:
            world = directory / "world"
            shutil.rmtree(make_world(world, BLOCK, with_heavy=True, with_plain=False).store)
        self._two_tower, self._heavy = open_bundle(world / "two_tower"), open_bundle(world / "heavy")
        self.store = DirectoryStore(directory / "store")
        (directory / "ads").mkdir()
        pq.write_table(ads_block(0).slice(0, num_ads), directory / "ads" / "0.parquet")
        rows = read_parquet(directory / "ads" / "0.parquet", {})
        self._contents = [update for _, update in rows if update.content is not None]
        (directory / "limits.yaml").write_text(REPLAY_LIMITS)

    def publish(self) -> str:
        """Seal both bundles anew, build, publish, prune; the id of the release."""
        number, at = self.num_releases, self._directory / f"release-{self.num_releases}"
        at.mkdir()
        tower, heavy = _resealed(self._two_tower, at / "tower", number), _resealed(self._heavy, at / "heavy", number)
        parts = ["--two-tower", str(tower), "--heavy", str(heavy)]
        where = ["--store", str(self.store.root)]
        merged = where if number else []  # before the first release there is no store
        _run("index", "build", "--ads", str(self._directory / "ads"), *parts, "--out", str(at / "index"), *merged)
        limits = ["--limits", str(self._directory / "limits.yaml")]
        _run("index", "publish", *parts, "--index", str(at / "index"), *where, *limits)
        _run("index", "prune", "--keep", str(KEPT), *where)
        shutil.rmtree(at)
        self.num_releases += 1
        release = self.store.current(SCENARIO)
        if release is None:
            raise RuntimeError(f"{self.store.root}: names no release after a publish")
        return release.release_id

    def update(self, number: int) -> None:
        """Append the lot of one second: bids, a takedown that is lifted a second later, changed ads and a new one."""
        rng, now = np.random.default_rng(number), time.time_ns() // 1000
        ids = [self._contents[place].ad_id for place in rng.integers(0, self.num_ads, STATES)]
        states = [Update(ad_id=ad_id, at=now, bid=float(rng.uniform(0.1, 3))) for ad_id in ids]
        states += [Update(ad_id=self._taken_down(number), at=now, takedown=True)]
        states += [Update(ad_id=self._taken_down(number - 1), at=now, takedown=False)]
        chosen = [self._contents[place] for place in rng.integers(0, self.num_ads, CONTENTS)]
        names = [update.ad_id for update in chosen[1:]] + [f"new-{number % 1_000:04}"]
        contents = [
            Update(ad_id=name, at=now, bid=1.0, content=_later(update.content, now))
            for name, update in zip(names, chosen, strict=True)
        ]
        self.store.append_updates([*states, *contents])

    def _taken_down(self, number: int) -> str:
        return self._contents[number % self.num_ads].ad_id


def _later(content: Content | None, now: int) -> Content:
    if content is None:
        raise RuntimeError("an ad of the catalogue has no content")
    return Content(
        scenario=content.scenario,
        valid_from=now,
        advertiser_id=content.advertiser_id,
        objective=content.objective,
        features=content.features,
    )


def _resealed(bundle: Bundle, target: Path, number: int) -> Path:
    """The same model under another version."""
    config: dict[str, Any] = {"release": number}

    def fill(directory: Path) -> None:
        for name in bundle.manifest.files:
            if name not in ("schema.yaml", "config.json"):
                shutil.copy(bundle.path / name, directory / name)

    seal_bundle(
        target,
        kind=bundle.manifest.kind,
        scenario=bundle.manifest.scenario,
        schema=bundle.schema,
        config=config,
        dims=bundle.manifest.dims,
        watermark=WATERMARK,
        fill=fill,
    )
    return target


def _go_behind() -> None:
    """What serves goes first. Where each session is a group of its own to the scheduler, ``nice`` ranks processes of a
    session alone, and the group has a value of its own: ``man 7 sched``."""
    os.nice(19)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def _run(*arguments: str) -> None:
    command = [sys.executable, "-m", "adsieve", *arguments]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, start_new_session=True, preexec_fn=_go_behind
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
