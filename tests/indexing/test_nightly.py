"""The built index equals the plain formula, row by row; every fault of the input stops the build by name."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.bundle import open_bundle
from contracts.encoding import Encoder
from contracts.errors import ArtifactError, InputError, LogError, MismatchError
from contracts.records import read_table
from contracts.release import IndexManifest
from indexing import plan_parts
from indexing.config import IndexConfig
from indexing.index import Index
from indexing.nightly import build_index
from towers.serving import TwoTowerServing, score, split_pin_embedding

MakeTable = Callable[..., pa.Table]


def build(
    ads: Path | str, bundles: Path, out: Path, *, heavy: bool = True, as_of: datetime | None = None, **config
) -> IndexManifest:
    return build_index(
        ads=ads,
        two_tower=bundles / "two_tower",
        heavy=bundles / "heavy" if heavy else None,
        out=out,
        config=IndexConfig(threads=1, engine="onnxruntime_cpu", **config),
        as_of=as_of,
    )


def write(directory: Path, table: pa.Table, name: str = "a.parquet") -> Path:
    directory.mkdir(exist_ok=True)
    pq.write_table(table, directory / name)
    return directory


def plain_catalog(ads: Path, as_of: int | None = None) -> list[dict]:
    """The newest row of each ad, by a loop."""
    newest: dict[str, dict] = {}
    table = read_table(ads)
    times = table["valid_from"].cast(pa.int64()).to_pylist()
    for row, time in zip(table.to_pylist(), times, strict=True):
        if as_of is not None and time > as_of:
            continue
        known = newest.get(row["ad_id"])
        if known is None or time > known["time"]:
            newest[row["ad_id"]] = {**row, "time": time}
    return [row for row in newest.values() if row["scenario"] == "shopping"]


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", np.float16), ("fp32", np.float32)])
def test_an_index_equals_the_plain_formula(
    ads: Path, bundles: Path, tmp_path: Path, precision: str, dtype: type
) -> None:
    manifest = build(ads, bundles, tmp_path / "index", precision=precision, batch_size=17)
    index = Index.open(tmp_path / "index")
    expected = plain_catalog(ads)
    rows = index.id_table.lookup([row["ad_id"] for row in expected])
    assert sorted(rows) == list(range(len(index)))
    assert index.manifest == manifest
    assert manifest.num_ads == len(expected) == 160

    bundle, heavy = open_bundle(bundles / "two_tower"), open_bundle(bundles / "heavy")
    table = pa.Table.from_pylist(expected)
    serving = TwoTowerServing.load(bundle, threads=1)
    vectors, bias = split_pin_embedding(serving.embed_ads(serving.ad_encoder.encode(table).encoded))
    assert index.vectors.dtype == dtype
    assert index.bias.dtype == np.float32
    np.testing.assert_allclose(index.vectors[rows], vectors.astype(dtype), rtol=1e-3 if dtype is np.float16 else 1e-6)
    np.testing.assert_allclose(index.bias[rows], bias, rtol=1e-6)

    encoded = Encoder(heavy.schema, "ad").encode(table).encoded
    assert index.heavy_ads is not None
    np.testing.assert_array_equal(index.heavy_ads.ids[rows], encoded.ids)
    np.testing.assert_array_equal(index.heavy_ads.floats[rows], encoded.floats)

    codes = {"active": 0, None: 0, "paused": 1}
    assert index.status[rows].tolist() == [codes[row["status"]] for row in expected]
    bids = np.array([np.nan if row["bid"] is None else row["bid"] for row in expected], np.float32)
    np.testing.assert_array_equal(index.bids[rows], bids)
    objectives = [*manifest.objectives, None]
    assert [objectives[code] for code in index.objectives[rows]] == [row["objective"] for row in expected]
    assert index.valid_from[rows].tolist() == [row["time"] for row in expected]
    advertisers = [*index.advertiser_ids.ids(np.arange(len(index.advertiser_ids))), None]
    assert [advertisers[code] for code in index.advertisers[rows]] == [row["advertiser_id"] for row in expected]


def test_the_manifest_is_the_summary(ads: Path, bundles: Path, tmp_path: Path) -> None:
    manifest = build(ads, bundles, tmp_path / "index")
    expected = plain_catalog(ads)
    now = datetime.now(UTC)
    ahead = [row for row in expected if row["valid_from"] > now + timedelta(days=1)]
    assert ahead
    assert manifest.warnings[0].startswith(f"{len(ahead)} ads of the catalogue are valid from more than a day ahead")
    assert manifest.catalog == {
        **{"rows": 250, "later": 0, "superseded": 50, "other_scenario": 40, "kept": 160},
        **{"merged": 0, "refused": 0, "ahead": len(ahead), "no_scenario": 0},
    }
    assert manifest.statuses["paused"] == sum(row["status"] == "paused" for row in expected)
    assert sum(manifest.statuses.values()) == 160
    assert manifest.dropped == {"features": 0, "bid": 0, "embedding": 0}
    assert manifest.coverage["two_tower"]["rows"] == 160
    assert manifest.coverage["two_tower"]["missing"]["category"] == sum(row["category"] is None for row in expected)
    others = sum(row["category"] == "other" for row in expected)
    assert manifest.coverage["two_tower"]["out_of_vocabulary"]["category"] == others
    assert manifest.coverage["heavy"]["missing"]["image"] == sum(row["image"] is None for row in expected)
    newest = max(moment for moment in read_table(ads)["valid_from"].to_pylist() if moment <= now)
    assert datetime.fromisoformat(manifest.watermark) == newest
    assert newest.tzinfo is not None


def test_the_result_depends_neither_on_batches_nor_on_parts(
    ads: Path, bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(ads, bundles, tmp_path / "a")
    monkeypatch.setattr(plan_parts, "ROWS_PER_PART", 9)
    again = build(f"{ads}/*.parquet", bundles, tmp_path / "b", batch_size=64)
    assert again.files.keys() == first.files.keys()
    differing = {name for name in first.files if first.files[name] != again.files[name]}
    assert differing <= {
        "vectors.npy",
        "bias.npy",
        "retrieval/head-0.faiss",
        "retrieval/head-1.faiss",
    }  # rounding of a GEMM
    monkeypatch.undo()
    assert build(ads, bundles, tmp_path / "c").version == first.version


def test_as_of_leaves_out_later_rows(ads: Path, bundles: Path, tmp_path: Path) -> None:
    as_of = datetime.fromtimestamp(5 * 10**8, UTC)
    manifest = build(ads, bundles, tmp_path / "a", as_of=as_of)
    expected = plain_catalog(ads, as_of=5 * 10**14)
    index = Index.open(tmp_path / "a")
    assert sorted(index.id_table.ids(np.arange(len(index)))) == sorted(row["ad_id"] for row in expected)
    assert datetime.fromisoformat(manifest.watermark) <= as_of
    assert manifest.catalog["later"] > 0
    far = build(ads, bundles, tmp_path / "b", as_of=datetime(2200, 1, 1, tzinfo=UTC))
    assert far.watermark == build(ads, bundles, tmp_path / "c").watermark
    with pytest.raises(InputError, match="as_of: expected a time with a zone"):
        build(ads, bundles, tmp_path / "d", as_of=datetime(2026, 1, 1))


def test_a_catalogue_without_optional_columns_and_without_a_heavy_ranker(
    ads_table: MakeTable, bundles: Path, tmp_path: Path
) -> None:
    table = ads_table(20).drop_columns(["status", "bid", "objective", "advertiser_id", "image"])
    manifest = build(write(tmp_path / "ads", table), bundles, tmp_path / "index", heavy=False)
    index = Index.open(tmp_path / "index")
    assert manifest.heavy is None
    assert index.heavy_ads is None
    assert (index.status == 0).all()
    assert np.isnan(index.bids).all()
    assert (index.objectives == -1).all()
    assert (index.advertisers == -1).all()
    assert index.advertiser_ids.lookup(["x"]).tolist() == [-1]


def test_two_rows_with_one_moment_are_refused(ads_table: MakeTable, bundles: Path, tmp_path: Path) -> None:
    write(tmp_path / "ads", ads_table(20))
    write(tmp_path / "ads", ads_table(20).slice(3, 1), "b.parquet")
    message = (
        r"b\.parquet: ad 'ad-3' has a second row with valid_from \S+\+00:00, the other is in \S+a\.parquet; 1 such"
    )
    with pytest.raises(LogError, match=message):
        build(tmp_path / "ads", bundles, tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["ads"]


def test_bad_ads_are_dropped_and_counted_up_to_a_share(ads_table: MakeTable, bundles: Path, tmp_path: Path) -> None:
    table = ads_table(100)
    prices, images = table["price"].to_pylist(), table["image"].to_pylist()
    prices[0], prices[5], images[10] = float("nan"), float("inf"), [float("nan"), 1.0]
    table = table.set_column(table.schema.get_field_index("price"), "price", pa.array(prices))
    table = table.set_column(table.schema.get_field_index("image"), "image", pa.array(images))
    ads = write(tmp_path / "ads", table)
    manifest = build(ads, bundles, tmp_path / "index", max_dropped_share=0.05)
    index = Index.open(tmp_path / "index")
    assert manifest.dropped == {"features": 3, "bid": 0, "embedding": 0}
    assert sum(manifest.faults.values()) == 3
    assert manifest.num_ads == len(index) == 77
    assert index.id_table.lookup(["ad-0-ü", "ad-5", "ad-10"]).tolist() == [-1, -1, -1]
    assert np.isfinite(index.vectors).all()
    with pytest.raises(
        LogError, match=r"3 of 80 ads \(3\.75%\) cannot be embedded, at most 1\.00% are allowed .*price"
    ):
        build(ads, bundles, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_an_embedding_beyond_half_precision_is_dropped(
    ads_table: MakeTable, make_two_tower: Callable, tower_schema: dict, tmp_path: Path
) -> None:
    features = {**tower_schema["features"], "price": {"side": "ad", "kind": "dense", "default": 1.0}}
    make_two_tower(tmp_path / "two_tower", schema={**tower_schema, "features": features})
    prices = [1e30, *np.linspace(1, 20, 99)]
    ads = write(tmp_path / "ads", ads_table(100, price=prices))
    half = build(ads, tmp_path, tmp_path / "half", heavy=False, max_dropped_share=0.05)
    full = build(ads, tmp_path, tmp_path / "full", heavy=False, precision="fp32")
    assert half.dropped == {"features": 0, "bid": 0, "embedding": 1}
    assert full.dropped == {"features": 0, "bid": 0, "embedding": 0}
    assert np.isfinite(Index.open(tmp_path / "half").vectors).all()


@pytest.mark.parametrize(("column", "model"), [("category", "two_tower-shopping-"), ("image", "heavy-all-")])
def test_a_column_that_a_model_was_trained_on_must_be_in_every_file(
    ads_table: MakeTable, bundles: Path, tmp_path: Path, column: str, model: str
) -> None:
    write(tmp_path / "ads", ads_table(20))
    later = ads_table(20, ad_id=[f"later-{number}" for number in range(20)]).drop_columns([column])
    write(tmp_path / "ads", later, "b.parquet")
    with pytest.raises(LogError, match=rf"b\.parquet: lacks the columns \['{column}'\] that {model}\w+ was trained on"):
        build(tmp_path / "ads", bundles, tmp_path / "index")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": ["archived"] * 20}, r"column status has the value 'archived', expected one of \['active'"),
        ({"objective": ["sale"] * 20}, r"column objective has the value 'sale', expected one of \['click'"),
        ({"ad_id": [None, *map(str, range(19))]}, "column ad_id is missing in 1 rows"),
        ({"ad_id": list(range(20))}, "column ad_id has type int64, expected text"),
        (
            {"valid_from": pa.array(range(20), pa.timestamp("us"))},
            r"valid_from has type timestamp\[us\], expected timestamp",
        ),
        ({"valid_from": pa.array([None] * 20, pa.timestamp("us", "UTC"))}, "column valid_from is missing in row 0"),
        ({"bid": ["high"] * 20}, "column bid has type string, expected number"),
        ({"price": ["high"] * 20}, "column 'price' has type string, expected numbers"),
        (
            {"scenario": ["standard"] * 20},
            "no ad of scenario 'shopping' as of this moment: of 20 rows 20 are of another",
        ),
        ({"price": [float("nan")] * 20}, r"16 of 16 ads \(100\.00%\) cannot be embedded"),
    ],
)
def test_faults_of_the_dataset_are_named(
    ads_table: MakeTable, bundles: Path, tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(LogError, match=message):
        build(write(tmp_path / "ads", ads_table(20, **changes)), bundles, tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["ads"]


def test_an_empty_dataset_is_refused(ads_table: MakeTable, bundles: Path, tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"a\.parquet: has no rows"):
        build(write(tmp_path / "ads", ads_table(20).slice(0, 0)), bundles, tmp_path / "index")


def test_columns_of_any_encoding_give_the_same_index(ads_table: MakeTable, bundles: Path, tmp_path: Path) -> None:
    table = ads_table(50)
    first = build(write(tmp_path / "a", table), bundles, tmp_path / "index-a")
    texts = ("ad_id", "scenario", "status", "objective", "advertiser_id", "category")
    encoded = {
        name: table[name].dictionary_encode() if name in texts[:3] else table[name].cast(pa.large_string())
        for name in texts
    }
    moments = {"valid_from": table["valid_from"].cast(pa.timestamp("ns", "Asia/Tokyo"))}
    again = build(write(tmp_path / "b", ads_table(50, **encoded, **moments)), bundles, tmp_path / "index-b")
    assert again.version == first.version


def test_damaged_and_wrong_bundles_are_refused(
    ads: Path, bundles: Path, tmp_path: Path, make_two_tower: Callable, make_heavy: Callable
) -> None:
    config = IndexConfig(threads=1, engine="onnxruntime_cpu")
    make_two_tower(tmp_path / "damaged")
    graph = tmp_path / "damaged" / "pin_tower.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=r"pin_tower\.onnx: truncated"):
        build_index(ads=ads, two_tower=tmp_path / "damaged", heavy=None, out=tmp_path / "i", config=config)
    with pytest.raises(MismatchError, match="kind 'heavy', expected 'two_tower'"):
        build_index(ads=ads, two_tower=bundles / "heavy", heavy=None, out=tmp_path / "i", config=config)
    make_heavy(tmp_path / "standard", scenario="standard")
    with pytest.raises(MismatchError, match="of scenario 'standard', expected none or 'shopping'"):
        build_index(
            ads=ads, two_tower=bundles / "two_tower", heavy=tmp_path / "standard", out=tmp_path / "i", config=config
        )
    make_two_tower(tmp_path / "any", scenario=None)
    with pytest.raises(MismatchError, match="serves one scenario, this one names none"):
        build_index(ads=ads, two_tower=tmp_path / "any", heavy=None, out=tmp_path / "i", config=config)


def test_scores_of_an_index_are_the_dot_products(ads: Path, bundles: Path, tmp_path: Path) -> None:
    build(ads, bundles, tmp_path / "index", precision="fp32")
    index = Index.open(tmp_path / "index")
    serving = TwoTowerServing.load(open_bundle(bundles / "two_tower"), threads=1)
    query = serving.embed_query(serving.query_encoder.encode({"country": pa.array(["FR"])}).encoded)[0]
    expected = plain_catalog(ads)
    pins = serving.embed_ads(serving.ad_encoder.encode(pa.Table.from_pylist(expected)).encoded)
    rows = index.id_table.lookup([row["ad_id"] for row in expected])
    logits = score(query, index.vectors[rows], index.bias[rows])
    np.testing.assert_allclose(logits, np.einsum("hd,ahd->ah", query, pins), rtol=1e-4, atol=1e-5)
