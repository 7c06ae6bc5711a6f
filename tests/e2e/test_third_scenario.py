"""A scenario is a name in a log: a third one goes from distillation to a mixed list without a line of code."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from scipy.special import logit

import adsieve
from adlogs.simulate import simulate
from contracts.records import open_dataset

VIDEO = "video.2"
"""A name that no schema, preset or module knows."""
SCHEMAS = {"standard": "simulated_standard", "shopping": "simulated_shopping", VIDEO: "simulated_standard"}
ENDS = datetime(2025, 3, 5, tzinfo=UTC)


def read(log: Path, name: str) -> pa.Table:
    return open_dataset(str(log / name)).to_table()


def replaced(table: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table


def renamed(log: Path) -> dict[str, pa.Table]:
    """The standard part of a log as a log of a scenario of another name, with ids of its own."""
    requests, ads = (read(log, name) for name in ("requests", "ads"))
    requests, ads = (table.filter(pc.equal(table["scenario"], "standard")) for table in (requests, ads))

    def own(column: Any) -> Any:
        return pc.binary_join_element_wise("v", column.cast(pa.string()), "-")

    found = {}
    for name in ("candidates", "truth"):
        table = read(log, name)
        table = table.filter(pc.is_in(table["request_id"].cast(pa.string()), requests["request_id"].cast(pa.string())))
        found[name] = replaced(table, request_id=own(table["request_id"]), ad_id=own(table["ad_id"]))
    names = {name: pa.array([VIDEO] * len(table)) for name, table in (("requests", requests), ("ads", ads))}
    found["requests"] = replaced(requests, request_id=own(requests["request_id"]), scenario=names["requests"])
    found["ads"] = replaced(ads, ad_id=own(ads["ad_id"]), scenario=names["ads"])
    return found


def with_teacher(candidates: pa.Table, truth: pa.Table) -> pa.Table:
    """A teacher that knows the truth of a simulated log."""
    assert candidates["ad_id"].to_pylist() == truth["ad_id"].to_pylist()
    for task in ("click", "conversion"):
        logits = logit(np.clip(truth[f"true_{task}"].to_numpy(), 1e-6, 1 - 1e-6)).astype(np.float32)
        candidates = candidates.append_column(f"teacher_{task}", pa.array(logits))
    return candidates.append_column("teacher_version", pa.array(["truth"] * len(candidates)))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three scenarios, as an exchange writes one: each dataset in several files."""
    root = tmp_path_factory.mktemp("three")
    log, other = root / "log", root / "other"
    simulate(log, "tiny", None)
    simulate(other, "tiny", 5)
    more = renamed(other)
    parts = {name: {"a": read(log, name), "b": more[name]} for name in ("requests", "candidates", "ads", "truth")}
    made = root / "three"
    for name in ("requests", "candidates", "ads"):
        (made / name).mkdir(parents=True)
        for part, table in parts[name].items():
            told = with_teacher(table, parts["truth"][part]) if name == "candidates" else table
            pq.write_table(told, made / name / f"{part}.parquet")
    return made


@pytest.fixture(scope="module")
def root(log: Path) -> Path:
    """Students, indexes and releases of all three."""
    root = log.parent
    for number, (scenario, schema) in enumerate(SCHEMAS.items()):
        place = root / f"scenario-{number}"
        place.mkdir()
        towers, run, bundle, index = (str(place / name) for name in ("towers.yaml", "run", "bundle", "index"))
        data, unseen, store = ("--logs", str(log)), ("--from", ENDS.isoformat()), ("--store", str(root / "store"))
        adsieve_command("schema", "fit", schema, *data, "--out", towers)
        train = ("--schema", towers, "--scenario", scenario, "--until", ENDS.isoformat(), "--epochs", "1")
        adsieve_command("distill", "train", *data, *train, *store, "--out", run)
        reason = ("--override", "a test of names, not of quality")
        adsieve_command("distill", "publish", "--run", run, *data, *unseen, *store, *reason, "--out", bundle)
        build = ("--ads", str(log / "ads"), "--two-tower", bundle, "--engine", "onnxruntime_cpu")
        adsieve_command("index", "build", *build, "--out", index)
        adsieve_command("index", "publish", "--two-tower", bundle, "--index", index, *store, *reason)
    return root


@pytest.mark.parametrize("name", ["auto", "vidéo", "a b", ""])
def test_a_name_that_no_release_can_have_is_refused_before_anything_is_learned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--logs", "log", "--schema", "s.yaml", "--scenario", name, "--out", str(tmp_path / "run"))
    monkeypatch.setattr("sys.argv", ["adsieve", "distill", "train", *words])
    with pytest.raises(SystemExit) as stopped:
        adsieve.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: scenario: expected ")


def adsieve_command(*words: str) -> None:
    adsieve.app(list(words), standalone_mode=False)


def rank(root: Path, body: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (root / "request.json").write_text(json.dumps(body))
    capsys.readouterr()
    adsieve_command("rank", str(root / "request.json"), "--store", str(root / "store"), "--json")
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_mixed_list_is_ranked_by_the_models_of_three_scenarios(
    root: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ads = read(log, "ads").select(["ad_id", "scenario"]).to_pylist()
    own = {scenario: [row["ad_id"] for row in ads if row["scenario"] == scenario][:5] for scenario in SCHEMAS}
    body = {"scenario": "auto", "query": {"country": "DE"}, "candidates": [ad for some in own.values() for ad in some]}
    answer = rank(root, body, capsys)
    assert set(answer["release"]) == set(SCHEMAS)
    ranked = dict(zip(answer["ads"]["ids"], answer["ads"]["scenarios"], strict=True))
    assert set(ranked.values()) == set(SCHEMAS)
    assert all(ad in own[scenario] for ad, scenario in ranked.items())
    alone = rank(root, body | {"scenario": VIDEO, "candidates": own[VIDEO]}, capsys)
    mixed = dict(zip(answer["ads"]["ids"], answer["ads"]["utilities"], strict=True))
    for ad, utility in zip(alone["ads"]["ids"], alone["ads"]["utilities"], strict=True):
        assert utility == pytest.approx(mixed[ad], rel=1e-6)
    found = rank(root, {"scenario": VIDEO, "query": {}}, capsys)
    assert found["ads"]["ids"]
    assert all(ad.startswith("v-") for ad in found["ads"]["ids"])
