"""What ``benchmarks.serving`` serves: bundles of random weights, an index and a store, by the real commands.

``standard()`` towers and a heavy ranker of ``iqiyi()`` sizes, sealed as training seals them; the index comes from
``adsieve index build``, the release from ``adsieve index publish``. What the other systems need of the same release is
written as plain files beside it: ids, vectors, biases, tables, the exported query tower and where each feature stands.
"""

import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from benchmarks.heavy_serving_setup import Setup, rows, score, serving, set_up
from benchmarks.index_build_setup import drawn_larger
from benchmarks.naive_serving import NaiveServing
from benchmarks.serving_requests import BLOCK, EVENT_TIME, SCENARIO, ads_block, bodies, towers_schema
from contracts.artifact import write_json
from contracts.bundle import PARITY_FILE, WEIGHTS_FILE, Bundle, seal_bundle
from contracts.encoding import Encoded, Encoder
from contracts.probability import sigmoid
from contracts.rows import encode_request
from contracts.schema import FeatureSchema
from contracts.sequence_encoder import age_edges
from indexing.index import Index
from modeling.profile import PROFILE_FILE, side_profile
from modeling.saved_requests import REQUESTS_FILE
from towers.build import build_two_tower
from towers.export import ParityRows, export_two_tower
from towers.presets import standard
from towers.two_tower import TwoTower

WATERMARK = "2026-03-01T00:00:00+00:00"
PARITY_ADS, PARITY_QUERIES, PARITY_PAIRS = 4096, 32, 64
SAVED = 32
LIMITS = "max_calibration_heavy: null\n"
"""Towers and heavy ranker were drawn apart: their sums say nothing of each other."""


@dataclass(frozen=True)
class World:
    """A store with one release, and where it was asked for the same as plain files. ``heavy`` is None without one."""

    num_ads: int
    store: Path
    two_tower: Path
    heavy: Path | None
    plain: Path


def make_model() -> TwoTower:
    """Random weights, drawn so that no cross layer is near the identity and ads differ."""
    return drawn_larger(build_two_tower(towers_schema(), standard(), seed=0))


def make_world(directory: Path, num_ads: int, *, with_heavy: bool, with_plain: bool) -> World:
    """Make everything in ``directory``.

    Raises:
        ValueError: ``num_ads`` is no multiple of the ads that are drawn at once.
        RuntimeError: A command failed; with what it said.
    """
    if num_ads % BLOCK or num_ads < BLOCK:
        raise ValueError(f"the index holds a multiple of {BLOCK:,} ads, got {num_ads:,}")
    directory.mkdir(parents=True)
    two_tower = _seal_towers(directory / "two_tower", num_ads)
    heavy = None
    if with_heavy:
        (directory / "graphs").mkdir()
        setup = set_up(directory / "graphs")
        heavy = _seal_heavy(setup, directory / "heavy").path
    store, index = directory / "store", directory / "index"
    ads = _write_ads(directory / "ads", num_ads)
    parts = ["--two-tower", str(two_tower.path), *(["--heavy", str(heavy)] if heavy else [])]
    _adsieve("index", "build", "--ads", str(ads), *parts, "--out", str(index))
    shutil.rmtree(ads)
    (directory / "limits.yaml").write_text(LIMITS)
    given = [*parts, "--index", str(index), "--store", str(store)]
    _adsieve("index", "publish", *given, "--limits", str(directory / "limits.yaml"))
    plain = directory / "plain"
    if with_plain:
        _write_plain(plain, two_tower, Index.open(index, verify=False))
    shutil.rmtree(index)
    return World(num_ads, store, two_tower.path, heavy, plain)


def _adsieve(*arguments: str) -> None:
    result = subprocess.run([sys.executable, "-m", "adsieve", *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"adsieve {' '.join(arguments)} failed:\n{result.stdout}{result.stderr}")


def _write_ads(directory: Path, num_ads: int) -> Path:
    directory.mkdir()
    for first in range(0, num_ads, BLOCK):
        pq.write_table(ads_block(first), directory / f"{first // BLOCK:04}.parquet", row_group_size=BLOCK // 2)
    return directory


def _seal_towers(target: Path, num_ads: int) -> Bundle:
    schema, model = towers_schema(), make_model()
    training = Encoder(schema, "ad").encode(ads_block(0))
    saved = bodies(SAVED, num_ads=num_ads, candidates=500, stage="full")
    queries = [_encoded_query(schema, body["query"]) for body in saved[:PARITY_QUERIES]]
    query = Encoded(*(np.concatenate([getattr(one, part) for one in queries]) for part in ("ids", "floats")))

    def fill(directory: Path) -> None:
        parity = ParityRows(query, training.encoded.take(np.arange(PARITY_ADS)))
        export_two_tower(model, directory, parity)
        write_json(directory / PROFILE_FILE, {"ad": side_profile(schema, "ad", training.encoded, training.coverage)})
        (directory / REQUESTS_FILE).write_bytes(b"".join(msgspec.json.encode(body) + b"\n" for body in saved))

    return seal_bundle(
        target,
        kind="two_tower",
        scenario=SCENARIO,
        schema=schema,
        config=msgspec.to_builtins(standard()),
        dims={"num_heads": len(schema.tasks), "head_dim": standard().head_dim},
        watermark=WATERMARK,
        fill=fill,
    )


def _encoded_query(schema: FeatureSchema, query: dict[str, Any]) -> Encoded:
    moment = int(EVENT_TIME.timestamp() * 1e6)
    return encode_request(Encoder(schema, "query"), query, event_time_us=moment)[0]


def _seal_heavy(setup: Setup, target: Path) -> Bundle:
    naive = NaiveServing(setup.ranker, setup.layouts, setup.tables)
    given = rows(setup, requests=1, ads=PARITY_PAIRS)
    wanted = sigmoid(naive(given.query, given.ad, given.pair)).astype(np.float32)
    found = sigmoid(score(serving(setup, "onnxruntime_cpu", threads=1), given))
    if np.abs(found - wanted).max() > 1e-4:
        raise RuntimeError("the heavy ranker's graphs differ from its module")
    sides = {"query": given.query, "ad": given.ad, "pair": given.pair}
    tensors = {f"in.{side}_{part}": getattr(rows, part) for side, rows in sides.items() for part in ("ids", "floats")}
    tensors |= {"in.request_index": given.request_index, "out.probabilities": wanted}

    def fill(directory: Path) -> None:
        shutil.copytree(setup.directory, directory, dirs_exist_ok=True)
        save_file(setup.tables | _dense_weights(setup), directory / WEIGHTS_FILE)
        save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, directory / PARITY_FILE)

    return seal_bundle(
        target,
        kind="heavy",
        scenario=None,
        schema=setup.schema,
        config={},
        dims={"variable_lengths": 1},
        watermark=WATERMARK,
        fill=fill,
    )


def _dense_weights(setup: Setup) -> dict[str, np.ndarray]:
    """Of the ranker, by the names that ``serving_naive_model`` reads them by."""
    return {f"ranker.{name}": value.contiguous().numpy() for name, value in setup.ranker.state_dict().items()}


def _write_plain(directory: Path, bundle: Bundle, index: Index) -> None:
    """The release as plain files; ``serving_plain`` tells how they are read."""
    directory.mkdir()
    count = len(index)
    np.save(directory / "vectors.npy", np.asarray(index.pins.vectors))
    np.save(directory / "bias.npy", np.asarray(index.pins.bias))
    heads = [bundle.schema.tasks.index(bundle.schema.objectives[name] or "") for name in index.manifest.objectives]
    np.save(directory / "heads.npy", np.array(heads, np.int8)[np.asarray(index.objectives)])
    (directory / "ids.txt").write_text("\n".join(index.id_table.ids(np.arange(count))))
    if index.heavy_ads is not None:
        np.save(directory / "heavy_ids.npy", np.asarray(index.heavy_ads.ids))
        np.save(directory / "heavy_floats.npy", np.asarray(index.heavy_ads.floats))
    (directory / "tables").mkdir()
    for name, values in bundle.tensors().items():
        if name.startswith("tables."):
            np.save(directory / "tables" / f"{name.removeprefix('tables.')}.npy", values)
    shutil.copy(bundle.file("query_tower.onnx"), directory)
    write_json(directory / "spec.json", query_spec(bundle.schema))


def query_spec(schema: FeatureSchema) -> dict[str, Any]:
    """Where each feature of a query stands, in words that need none of this project's code."""
    layout, tables = Encoder(schema, "query").layout, schema.all_tables()

    def id_column(column: Any) -> dict[str, Any]:
        return asdict(column) | {"rows": tables[column.table].num_rows, "edges_us": None}

    bags = [id_column(column) for column in layout.bags]
    sequences = []
    for sequence in layout.sequences:
        kinds = schema.features[sequence.name].fields or {}
        fields = [id_column(field) for field in sequence.fields]
        for field in fields:
            if kinds[field["name"]].kind == "age":
                field["edges_us"] = age_edges(field["rows"]).tolist()
        sequences.append({"name": sequence.name, "fields": fields})
    defaults = {name: schema.features[name].default for name in (column.name for column in layout.dense)}
    dense = [asdict(column) | {"default": defaults[column.name]} for column in layout.dense]
    return {
        "tasks": list(schema.tasks),
        "num_ids": layout.num_ids,
        "num_floats": layout.num_floats,
        "bags": bags,
        "dense": dense,
        "sequences": sequences,
    }
