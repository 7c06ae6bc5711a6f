"""The feedback log, written by the true application: it holds what the answers said, and training reads it as it is."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from msgspec import structs
from typer.testing import CliRunner

from adlogs.validate import validate_log
from contracts.bundle import open_bundle
from contracts.config import dump_yaml
from contracts.records import LogPaths, utc_micros
from contracts.schema import save_schema
from heavy_ranker.score import score_log
from heavy_ranker.series import bundle_teacher
from indexing.update_record import Content, Update
from service.app import create_app
from service.deadline import Deadline
from service.ranker import rank
from service.wire import decode_request
from towers.serving import score, split_pin_embedding

NUM_REQUESTS = 60
TASKS = ("click", "conversion")


def make_body(example_query, number):
    """Requests of every kind: mixed lists, columns, retrieval, the light stage alone, short and long lists."""
    rng = np.random.default_rng(number)
    scenario = ("shopping", "standard", "auto")[number % 3]
    ids = [f"{name}-{i}" for name in ("shopping", "standard") for i in rng.permutation(40)[:15].tolist()]
    ids = [ids[place] for place in rng.permutation(len(ids))] + ["gone", ids[0]]
    body = {
        "request_id": f"r-{number}",
        "scenario": scenario,
        "query": example_query(number),
        "event_time": f"2026-03-01T12:{number % 60:02}:00Z",
        "candidates": ids,
        "survivors": int(rng.integers(1, 12)),
        "limit": 3,
    }
    match number % 5:
        case 1:
            body["candidates"] = {
                "ids": ids,
                "bids": [
                    None if i % 4 == 0 else round(float(bid), 3) for i, bid in enumerate(rng.uniform(0, 2, len(ids)))
                ],
                "objectives": [("click", "conversion", None)[i % 3] for i in range(len(ids))],
                "affinity": [None if i % 5 == 0 else float(i) for i in range(len(ids))],
            }
        case 2:
            body["stage"] = "light"
        case 3:
            del body["candidates"]
    return body


@pytest.fixture(scope="module")
def logged(settings, artifacts, example_query, tmp_path_factory):
    """A log that the application wrote: its place, the requests and the answers."""
    root = tmp_path_factory.mktemp("feedback")
    with_log = settings.model_copy(update={"feedback_dir": root, "feedback_rows": 400, "feedback_seconds": 3600.0})
    bodies, answers = [make_body(example_query, number) for number in range(NUM_REQUESTS)], []
    with TestClient(create_app(with_log)) as client:
        wait_until_ready(client)
        for number, body in enumerate(bodies):
            content = msgspec.json.encode(body) + b" " * (2_048 * (number % 2))  # candidates are cut out of long bodies
            asked = client.post("/rank", content=content, headers={"Content-Type": "application/json"})
            answers.append(asked.raise_for_status().json())
    metrics = client.app
    os.symlink(artifacts / "ads", root / "ads")
    return SimpleNamespace(root=root, paths=LogPaths.under(root), bodies=bodies, answers=answers, app=metrics)


def wait_until_ready(client):
    while client.get("/health/ready").status_code != 200:
        pass


def read(path):
    return pa.concat_tables(
        [pq.read_table(file) for file in sorted(Path(path).rglob("*.parquet"))], promote_options="none"
    )


def logged_rows(logged):
    """Rows of ``candidates/`` by logged request id."""
    rows = {}
    for row in read(logged.paths.candidates).to_pylist():
        rows.setdefault(row["request_id"], []).append(row)
    return rows


def sigmoid(logit):
    return 1 / (1 + np.exp(-np.float64(logit)))


def expected_rows(body, snapshot, settings):
    """What ranking all of the candidates in the light stage says, by logged request id and ad."""
    everything = decode_request(
        msgspec.json.encode({**body, "survivors": 10_000, "limit": None, "stage": "light", "explain": True})
    )
    response = rank(everything, snapshot, settings, Deadline()).response
    rows = {}
    for place, (ad_id, scenario) in enumerate(zip(response.ads.ids, response.ads.scenarios, strict=True)):
        name = f"{body['request_id']}/{scenario}" if body["scenario"] == "auto" else body["request_id"]
        rows.setdefault(name, {})[ad_id] = {
            "bid": response.explain.bids[place],
            "objective": response.explain.objectives[place],
            **{f"light_{task}": values[place] for task, values in response.ads.light.items()},
        }
    return rows


def test_every_eligible_ad_is_logged_as_it_was_scored(logged, snapshot, settings):
    found = logged_rows(logged)
    expected = {}
    for body in logged.bodies:
        if "candidates" in body:
            expected |= expected_rows(body, snapshot, settings)
    retrieved = {
        name
        for name in found
        if name.split("/")[0] not in {b["request_id"] for b in logged.bodies if "candidates" in b}
    }
    assert found.keys() - retrieved == expected.keys()
    for name, ads in expected.items():
        assert {row["ad_id"] for row in found[name]} == ads.keys()
        for row in found[name]:
            wanted = ads[row["ad_id"]]
            assert row["bid"] == np.float32(wanted["bid"])
            assert row["objective"] == wanted["objective"]
            for task in TASKS:
                assert sigmoid(row[f"light_{task}"]) == pytest.approx(wanted[f"light_{task}"], rel=1e-6)
                assert row[f"label_{task}"] is None


def test_survivors_are_candidates_with_the_heavy_rankers_logits(logged, snapshot, settings):
    found, num_with_teacher = logged_rows(logged), 0
    for body, answer in zip(logged.bodies, logged.answers, strict=True):
        whole = decode_request(msgspec.json.encode({**body, "limit": None}))
        ads = rank(whole, snapshot, settings, Deadline()).response.ads
        rows = {
            row["ad_id"]: row
            for name, part in found.items()
            if name.split("/")[0] == body["request_id"]
            for row in part
        }
        assert {ad_id for ad_id, row in rows.items() if row["stage"] == "candidate"} == set(ads.ids)
        assert set(answer["ads"]["ids"]) <= set(ads.ids)
        assert {row["stage"] for row in rows.values()} <= {"eligible", "candidate"}
        for ad_id, row in rows.items():
            place = ads.ids.index(ad_id) if ad_id in ads.ids and ads.heavy is not None else None
            assert (row["teacher_version"] is None) == (place is None)
            for task in TASKS:
                if place is None:
                    assert row[f"teacher_{task}"] is None
                else:
                    num_with_teacher += 1
                    assert sigmoid(row[f"teacher_{task}"]) == pytest.approx(ads.heavy[task][place], rel=1e-6)
    assert num_with_teacher > 100


def test_requests_say_when_by_what_and_of_which_ads(logged, snapshot):
    requests = {row["request_id"]: row for row in read(logged.paths.requests).to_pylist()}
    assert len(requests) == len(read(logged.paths.requests))
    for body, answer in zip(logged.bodies, logged.answers, strict=True):
        split = body["scenario"] == "auto"
        names = (
            [f"{body['request_id']}/{scenario}" for scenario in answer["release"]] if split else [body["request_id"]]
        )
        for name in names:
            row = requests.pop(name)
            release = snapshot.releases[row["scenario"]]
            assert row["scenario"] == (name.split("/")[1] if split else body["scenario"])
            assert row["release"] == release.release.release_id
            assert row["event_time"] == datetime.fromisoformat(body["event_time"])
            assert row["ads_as_of"] == release.watermark
            assert row["labels_as_of"] is None
            assert (row["country"], row["user_ctr"]) == (body["query"]["country"], body["query"]["user_ctr"])
            assert row["device"] == body["query"]["device"]
            assert row["watch.ad"] == body["query"]["watch"]["ad"]
            assert len(row["watch.time"]) == len(body["query"]["watch"]["time"])
    assert requests == {}


def test_files_end_by_rows_and_have_the_same_columns(logged):
    files = sorted(Path(logged.paths.candidates).rglob("*.parquet"))
    assert len(files) > 2
    assert [f.relative_to(logged.paths.candidates) for f in files] == [
        f.relative_to(logged.paths.requests) for f in sorted(Path(logged.paths.requests).rglob("*.parquet"))
    ]
    assert len({pq.read_schema(file) for file in files}) == 1
    assert all(pq.read_metadata(file).num_rows >= 400 for file in files[:-1])
    for file in files:
        ids = pq.read_table(file)["request_id"]
        assert (
            len(ids.combine_chunks().unique())
            == 1 + (np.diff(ids.combine_chunks().dictionary_encode().indices) != 0).sum()
        )


def test_validate_accepts_what_was_written(logged, sealing):
    for heavy in (False, True):
        report = validate_log(logged.paths, sealing.make_schema(heavy=heavy))
        assert report.faults == ()
        assert report.counts["candidates"].rows == len(read(logged.paths.candidates))


def test_the_same_heavy_ranker_finds_the_logits_again(logged, artifacts, tmp_path):
    """From the log alone: raw features, pair features, histories, and the ads as of the index that served."""
    teacher = bundle_teacher(open_bundle(artifacts / "heavy", kind="heavy"))
    score_log(teacher, logged.paths, tmp_path, threads=1)
    assert compare_teachers(logged.paths, tmp_path) > 100


def compare_teachers(paths, scored):
    """How many logits of the log were found again by scoring it."""
    served, again = read(paths.candidates), read(scored / "candidates")
    assert served["ad_id"].equals(again["ad_id"])
    num_compared = 0
    for task in TASKS:
        known = np.asarray(served[f"teacher_{task}"].is_valid())
        before, after = (np.asarray(table[f"teacher_{task}"].filter(pa.array(known))) for table in (served, again))
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
        num_compared += len(before)
    return num_compared


def test_the_same_towers_find_the_light_logits_again(logged, snapshot, artifacts):
    """From the log alone too; every logged ad of a scenario against every request of it that ranked it."""
    loaded, num_compared = snapshot.releases["shopping"], 0
    ads = pq.read_table(artifacts / "ads" / "shopping")
    vectors, bias = split_pin_embedding(loaded.tower.embed_ads(loaded.tower.ad_encoder.encode(ads).encoded))
    place = {ad_id: row for row, ad_id in enumerate(ads["ad_id"].to_pylist())}
    requests, rows = read(logged.paths.requests).filter(pc.field("scenario") == "shopping"), logged_rows(logged)
    times = utc_micros(requests["event_time"], column="event_time", source="requests")
    queries = loaded.tower.embed_query(loaded.tower.query_encoder.encode(requests, event_time=times).encoded)
    for request_id, query in zip(requests["request_id"].to_pylist(), queries, strict=True):
        for row in rows[request_id]:
            at = place[row["ad_id"]]
            logits = score(query, vectors[at : at + 1], bias[at : at + 1])[0]
            assert [row[f"light_{task}"] for task in TASKS] == pytest.approx(logits.tolist(), rel=5e-3, abs=5e-3)
            num_compared += 1
    assert num_compared > 200


def test_a_request_names_the_release_that_answered_it(own_world, own_settings, example_query, tmp_path):
    settings = own_settings.model_copy(update={"feedback_dir": tmp_path / "log"})
    answered = {}
    with TestClient(create_app(settings)) as client:
        wait_until_ready(client)
        for generation in (0, 1):
            if generation:
                own_world.publish("shopping", generation)
            while len({versions["two_tower"] for versions in answered.values()}) <= generation:
                body = make_body(example_query, 0) | {"request_id": f"r-{len(answered)}"}
                answered[body["request_id"]] = client.post("/rank", json=body).json()["release"]["shopping"]
    releases = {release.release_id: release for release in own_world.store.list("shopping")}
    named = read(tmp_path / "log" / "requests")
    assert named["request_id"].to_pylist() == list(answered)
    for request_id, release_id in zip(*(named[name].to_pylist() for name in ("request_id", "release")), strict=True):
        assert releases[release_id].two_tower == answered[request_id]["two_tower"]


def test_changed_and_new_ads_are_joined_as_they_served(own_world, own_settings, artifacts, example_query, tmp_path):
    root, moment = tmp_path / "feedback", datetime(2026, 3, 1, 11, tzinfo=UTC)
    features = {
        "shopping-1": {"ad_key": "key-7", "tags": ["t2"], "price": 55.0},
        "fresh": {"ad_key": "key-3", "tags": ["t1"], "price": 9.0},
    }

    def ask(client, number):
        body = make_body(example_query, 0) | {"request_id": f"r-{number}", "survivors": 50, "limit": 50}
        body["candidates"] = [f"shopping-{i}" for i in range(1, 7)] + ["fresh"]
        return client.post("/rank", json=body).raise_for_status().json()["ads"]["ids"]

    with TestClient(create_app(own_settings.model_copy(update={"feedback_dir": root}))) as client:
        wait_until_ready(client)
        before = ask(client, 0)
        own_world.store.append_updates(
            [
                Update(
                    ad_id=ad_id,
                    at=int(moment.timestamp() * 10**6),
                    bid=1.5,
                    content=Content(
                        scenario="shopping",
                        valid_from=int(moment.timestamp() * 10**6),
                        objective="click",
                        features=values,
                    ),
                )
                for ad_id, values in features.items()
            ]
        )
        while len(after := ask(client, 1)) == len(before):
            ask(client, 2)
        ask(client, 3)
    assert set(after) == {*before, "fresh"}

    table = pq.read_table(artifacts / "ads" / "shopping")
    rows = [
        {
            "ad_id": ad_id,
            "valid_from": moment,
            "scenario": "shopping",
            "status": "active",
            "bid": 1.5,
            "objective": "click",
            "advertiser_id": None,
            **values,
        }
        for ad_id, values in features.items()
    ]
    (root / "ads").mkdir()
    pq.write_table(
        pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)]), root / "ads" / "part.parquet"
    )
    paths = LogPaths.under(root)
    ads_as_of = dict(
        zip(*(read(paths.requests)[name].to_pylist() for name in ("request_id", "ads_as_of")), strict=True)
    )
    assert ads_as_of["r-0"] < moment == ads_as_of["r-3"]
    score_log(bundle_teacher(open_bundle(artifacts / "heavy", kind="heavy")), paths, tmp_path / "scored", threads=1)
    assert compare_teachers(paths, tmp_path / "scored") >= 2 * (len(before) + len(after))


def write_outcomes(logged, root):
    """Most survivors were shown, and some clicked: as a pipeline tells it later. Returns how many were shown."""
    survivors = read(logged.paths.candidates).filter(pc.field("stage") == "candidate")
    position = np.arange(len(survivors))
    unshown, click = position % 5 == 4, (position % 3 == 0).astype(np.int8)
    table = pa.table(
        {
            "request_id": survivors["request_id"],
            "ad_id": survivors["ad_id"],
            "shown": ~unshown,
            "label_click": pa.array(click, mask=unshown),
            "label_conversion": pa.array(click * (position % 2), pa.int8(), mask=unshown),
        }
    )
    (root / "outcomes").mkdir()
    pq.write_table(table, root / "outcomes" / "part.parquet")
    return int((~unshown).sum())


def trainable(schema):
    """The schema with tables of a width that training takes."""
    tables = {name: structs.replace(table, dim=4) for name, table in schema.tables.items()}
    watch = schema.features["watch"]
    fields = {**watch.fields, "time": structs.replace(watch.fields["time"], dim=4)}
    features = {**schema.features, "watch": structs.replace(watch, fields=fields)}
    return structs.replace(schema, tables=tables, features=features)


def adsieve(app, *words, **options):
    """Run a command with ``--option VALUE`` and ``--json``."""
    named = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    result = CliRunner().invoke(app, [str(word) for word in (*words, *named, "--json")])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def configs(tmp_path):
    """The smallest models."""
    loop = {"epochs": 1, "learning_rate": 0.01}
    common = {"loop": loop, "table_learning_rate": 0.1, "validation_share": 0.0, "seed": 1, "compile": False}
    few = ("query_tokens", "ad_tokens", "queries_per_sequence", "num_layers", "num_heads", "sequence_expansion")
    model = dict.fromkeys((*few, "num_slices", "mixer_expansion", "shared_experts", "task_experts"), 1)
    model |= {"token_dim": 4, "query_hidden_dim": 4, "expert_dim": 4, "head_dims": [4]}
    tower = {"width": 8, "num_experts": 1, "full_rank_layers": 1, "low_rank_layers": 0, "rank": 2}
    tower |= {"hidden_dims": [8], "gate_hidden_dim": 4}
    towers = {"query": tower, "pin": tower, "head_dim": 4}
    dump_yaml({**common, "model": model, "fresh_tables": False, "batch_size": 64}, tmp_path / "heavy-config.yaml")
    dump_yaml({**common, "towers": towers, "pairs_per_batch": 128}, tmp_path / "distill-config.yaml")
    return {"heavy": tmp_path / "heavy-config.yaml", "distill": tmp_path / "distill-config.yaml"}


def test_the_next_training_run_reads_it_as_it_is(logged, artifacts, sealing, configs, tmp_path):
    """A heavy ranker from the log and its outcomes, and a student from scores of the whole log."""
    from distill.cli import app as distill
    from heavy_ranker.cli import app as heavy

    log, scored = tmp_path / "log", tmp_path / "scored"
    log.mkdir()
    for name in ("requests", "candidates", "ads"):
        os.symlink(logged.root / name, log / name)
    num_shown = write_outcomes(logged, log)
    for name in ("heavy", "towers"):
        save_schema(trainable(sealing.make_schema(heavy=name == "heavy")), tmp_path / f"{name}.yaml")
    assert validate_log(LogPaths.under(log), sealing.make_schema(heavy=True)).faults == ()

    options = {"schema": tmp_path / "heavy.yaml", "config": configs["heavy"], "out": tmp_path / "run"}
    assert adsieve(heavy, "train", logs=log, **options)["impressions"] == num_shown
    found = adsieve(heavy, "score", logs=log, bundle=artifacts / "heavy", out=scored)  # sealing one takes a minute
    num_rows = len(read(logged.paths.candidates))
    assert (found["rows"], found["rows_scored"]) == (num_rows, num_rows)

    options = {"schema": tmp_path / "towers.yaml", "config": configs["distill"], "out": tmp_path / "student"}
    student = adsieve(
        distill, "train", logs=log, candidates=scored / "candidates", scenario="shopping", store=tmp_path, **options
    )
    of_shopping = read(logged.paths.requests).filter(pc.field("scenario") == "shopping")["request_id"]
    wanted = pc.is_in(read(logged.paths.candidates)["request_id"], value_set=of_shopping.combine_chunks())
    assert student["summary"]["pairs"] == pc.sum(wanted).as_py()
