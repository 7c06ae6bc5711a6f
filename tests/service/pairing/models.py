"""Two ways to read an ad, and the bundles and indexes of every way to pair them.

The two read other columns of the catalogue, in another order of kinds and from tables of other sizes, but their encoded
ads have the same shapes and the ids of the first are rows of the second's tables: who mixes them gets a number.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.bundle import Bundle
from contracts.schema import Feature, FeatureSchema, Table
from indexing.config import IndexConfig
from indexing.nightly import build_index
from indexing.reencode import reencode_index
from indexing.store import DirectoryStore
from indexing.update_log import UpdateLog

SCENARIO = "shopping"
AD_FEATURES = (
    {
        "ad_key": Feature(side="ad", kind="categorical", table="ad"),
        "price": Feature(side="ad", kind="dense", transform="log1p", default=1.0),
        "tags": Feature(side="ad", kind="multi_categorical", table="tag", max_length=2),
    },
    {
        "flavours": Feature(side="ad", kind="multi_categorical", table="tag", max_length=2),
        "kind": Feature(side="ad", kind="categorical", table="ad"),
        "margin": Feature(side="ad", kind="dense", default=0.5),
    },
)
BUCKETS = (40, 48)
COLUMNS = {
    "ad_key": pa.string(),
    "price": pa.float64(),
    "tags": pa.list_(pa.string()),
    "flavours": pa.list_(pa.string()),
    "kind": pa.string(),
    "margin": pa.float64(),
}
ATTRIBUTES = {
    "ad_id": pa.string(),
    "valid_from": pa.timestamp("us", "UTC"),
    "scenario": pa.string(),
    "status": pa.string(),
    "advertiser_id": pa.string(),
    "bid": pa.float64(),
    "objective": pa.string(),
}
NUM_TOWERS, NUM_HEAVIES = 2, 3
HEAVY_WAYS = (0, 1, 1)
"""How each heavy ranker reads an ad: the last two may serve with the same index."""
OBJECTIVES = ("impression", "click", "conversion")
EXACT = IndexConfig(engine="onnxruntime_cpu", precision="fp32", threads=1)


@dataclass(frozen=True)
class Models:
    """Everything that was built before the day. ``indexes`` are by tower and by the way that their heavy block reads.

    ``ads`` are the rows of the catalogue, which is the directory ``catalogue``.
    """

    towers: tuple[Bundle, ...]
    heavies: tuple[Bundle, ...]
    indexes: dict[tuple[int, int], Path]
    catalogue: Path
    ads: list[dict]

    def publish(self, store: DirectoryStore, tower: int, heavy: int, index: Path | None = None) -> None:
        """Publish a pair, by default with the index that was built before the day."""
        store.publish(
            two_tower=self.towers[tower].path,
            heavy=self.heavies[heavy].path,
            index=index or self.indexes[tower, HEAVY_WAYS[heavy]],
        )

    def build(
        self, out: Path, tower: int, heavy: int, *, more: Path | None = None, updates: UpdateLog | None = None
    ) -> Path:
        """The index of a pair, of the catalogue and of ``more`` files, with the updates of the day merged."""
        build_index(
            ads=self._ads(more),
            two_tower=self.towers[tower].path,
            heavy=self.heavies[heavy].path,
            out=out,
            config=EXACT,
            updates=updates,
        )
        return out

    def reencode(
        self, out: Path, index: Path, heavy: int, *, more: Path | None = None, updates: UpdateLog | None = None
    ) -> Path:
        """The same vectors, for another heavy ranker."""
        reencode_index(index=index, heavy=self.heavies[heavy].path, ads=self._ads(more), out=out, updates=updates)
        return out

    def _ads(self, more: Path | None) -> list[Path]:
        """Places of the dataset."""
        return [self.catalogue] + ([more] if more is not None and any(more.iterdir()) else [])


def make_models(root: Path, sealing: ModuleType, requests: list[dict]) -> Models:
    """Bundles of random weights, and their indexes: half of them built, half of them encoded again."""
    schemas = {(way, heavy): _schema(sealing, way, heavy=heavy) for way in (0, 1) for heavy in (False, True)}
    towers = tuple(
        sealing.seal_two_tower(root / f"tower-{way}", SCENARIO, 70 + way, requests, schemas[way, False])
        for way in range(NUM_TOWERS)
    )
    heavies = tuple(
        sealing.seal_heavy(root / f"heavy-{number}", 80 + number, schemas[way, True])
        for number, way in enumerate(HEAVY_WAYS)
    )
    catalogue = root / "ads"
    catalogue.mkdir()
    ads = _first_ads(np.random.default_rng(90))
    write_ads(catalogue / "part-0.parquet", ads)
    models = Models(towers, heavies, {}, catalogue, ads)
    for tower in (0, 1):
        built = models.build(root / f"built-{tower}", tower, heavy=tower)
        again = models.reencode(root / f"again-{tower}", built, heavy=1 - tower)
        models.indexes.update({(tower, tower): built, (tower, 1 - tower): again})
    return models


def random_features(rng: np.random.Generator) -> dict:
    """Raw values of an ad, some of them missing."""

    def some(value: object) -> object:
        return None if rng.random() < 0.1 else value

    return {
        "ad_key": some(f"key-{rng.integers(0, 30)}"),
        "price": some(float(rng.uniform(0, 60))),
        "tags": [f"t{one}" for one in rng.integers(0, 9, rng.integers(0, 3))],
        "flavours": [f"f{one}" for one in rng.integers(0, 9, rng.integers(0, 3))],
        "kind": some(f"kind-{rng.integers(0, 30)}"),
        "margin": some(float(rng.normal())),
    }


def write_ads(path: Path, ads: list[dict]) -> None:
    """Rows of the ads dataset as a file."""
    columns = {name: pa.array([ad[name] for ad in ads], kind) for name, kind in (ATTRIBUTES | COLUMNS).items()}
    pq.write_table(pa.table(columns), path)


def _schema(sealing: ModuleType, way: int, *, heavy: bool) -> FeatureSchema:
    base = sealing.make_schema(heavy=heavy)
    others = {name: feature for name, feature in base.features.items() if feature.side != "ad"}
    tables = {name: Table(dim=base.tables[name].dim, buckets=BUCKETS[way]) for name in ("ad", "tag")}
    return msgspec.structs.replace(base, features=others | AD_FEATURES[way], tables=base.tables | tables)


def _first_ads(rng: np.random.Generator) -> list[dict]:
    return [
        {
            "ad_id": f"ad-{number}",
            "valid_from": datetime(2026, 1, 1, tzinfo=UTC),
            "scenario": SCENARIO,
            "status": "paused" if number % 11 == 3 else "active",
            "advertiser_id": f"advertiser-{number % 5}",
            "bid": None if number % 13 == 5 else float(rng.uniform(0.1, 3)),
            "objective": OBJECTIVES[number % 3],
            **random_features(rng),
        }
        for number in range(40)
    ]
