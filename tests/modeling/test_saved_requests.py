import msgspec
import numpy as np
import pytest

from contracts.encoding import Encoder
from contracts.rows import encode_pairs, encode_request, parse_time
from contracts.schema import Feature, Table
from modeling.examples import encode_log
from modeling.profile import feature_profile
from modeling.saved_requests import saved_requests, write_saved_requests


@pytest.fixture(scope="module")
def examples(small_schema, small_log, tmp_path_factory):
    return encode_log(small_schema, small_log.paths, tmp_path_factory.mktemp("cache"), teacher=False, labels=False)


@pytest.fixture(scope="module")
def bodies(small_schema, examples, tmp_path_factory):
    directory = tmp_path_factory.mktemp("bundle")
    write_saved_requests(small_schema, examples, directory, count=20)
    return [msgspec.json.decode(line) for line in (directory / "requests.jsonl").read_bytes().splitlines()]


def test_as_many_distinct_requests_as_asked(bodies):
    assert len({body["request_id"] for body in bodies}) == 20


def test_a_saved_request_encodes_to_the_row_it_came_from(small_schema, examples, bodies):
    encoder = Encoder(small_schema, "query")
    rows = {request_id: row for row, request_id in enumerate(examples.request_ids.to_pylist())}
    for body in bodies:
        time = parse_time(body["event_time"], "event_time")
        encoded, unknown = encode_request(encoder, body["query"], event_time_us=time)
        expected = examples.query.take(np.array([rows[body["request_id"]]]))
        assert unknown == []
        np.testing.assert_array_equal(encoded.ids, expected.ids)
        np.testing.assert_array_equal(encoded.floats, expected.floats)


def test_candidates_are_the_pairs_of_the_request(small_schema, examples, bodies):
    encoder = Encoder(small_schema, "pair")
    request_ids, ad_ids = examples.request_ids.to_pylist(), examples.ad_ids.to_pylist()
    for body in bodies:
        pairs = [pair for pair, row in enumerate(examples.request_row) if request_ids[row] == body["request_id"]]
        candidates = body["candidates"]
        assert candidates["ids"] == [ad_ids[examples.ad_row[pair]] for pair in pairs]
        bids = [np.nan if bid is None else bid for bid in candidates["bids"]]
        np.testing.assert_array_equal(np.array(bids, np.float32), examples.bid[pairs])
        encoded = encode_pairs(encoder, candidates, len(pairs)).encoded
        np.testing.assert_array_equal(encoded.floats, examples.pair.floats[pairs])


def test_a_feature_that_is_the_scenario_stays_in_the_query(small_schema, small_log, tmp_path):
    """The service reads a feature from the query alone: without it there, a replay would rank without it."""
    table = Table(dim=4, vocabulary=("standard", "shopping"))
    feature = Feature(side="query", kind="categorical", table="scenario")
    schema = msgspec.structs.replace(
        small_schema,
        tables={**small_schema.tables, "scenario": table},
        features={"scenario": feature, **small_schema.features},
    )
    examples = encode_log(schema, small_log.paths, tmp_path, teacher=False, labels=False)
    bodies = saved_requests(schema, examples, count=20)
    known = {request["request_id"]: request["scenario"] for request in small_log.requests}
    assert [body["scenario"] for body in bodies] == [known[body["request_id"]] for body in bodies]
    assert [body["query"]["scenario"] for body in bodies] == [body["scenario"] for body in bodies]


def test_fewer_requests_than_asked_are_all_given(small_schema, examples):
    assert len(saved_requests(small_schema, examples, count=1000)) == len(np.unique(examples.request_row))


def test_profile_describes_the_encoded_values(small_schema, small_log, examples):
    profile = feature_profile(small_schema, examples)
    query = profile["query"]["features"]
    assert set(query) == {"country", "activity", "clicks.ad_id", "clicks.topic", "clicks.time"}
    missing = sum(request["country"] is None for request in small_log.requests) / len(small_log.requests)
    assert query["country"]["missing"] == missing
    activity = [0.5 if row["activity"] is None else row["activity"] for row in small_log.requests]
    assert query["activity"]["mean"] == pytest.approx(np.mean(activity), rel=1e-5)
    assert query["activity"]["quantiles"]["0.5"] == pytest.approx(np.median(activity), rel=1e-5)
    lengths = [min(len(row["clicks.ad_id"]), 4) for row in small_log.requests]
    assert query["clicks.ad_id"]["mean_length"] == pytest.approx(np.mean(lengths))
    assert profile["pair"]["rows"] == len(examples)
