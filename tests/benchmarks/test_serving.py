"""The systems that serving is compared with do the same work: their encoder, their order, and the check of answers."""

import msgspec
import numpy as np
import pytest

from benchmarks.serving_check import DifferentAnswerError, Expected, compare
from benchmarks.serving_plain import QueryEncoder, best
from benchmarks.serving_requests import BLOCK, EVENT_TIME, ads_block, bodies, towers_schema
from benchmarks.serving_world import query_spec
from contracts.encoding import Encoder
from contracts.rows import encode_request
from contracts.utility import top_positions

MOMENT = int(EVENT_TIME.timestamp() * 1e6)


def test_plain_encoder_equals_the_one_that_trains() -> None:
    """Absent and null features, short and long histories included."""
    schema = towers_schema()
    plain, encoder = (
        QueryEncoder(msgspec.json.decode(msgspec.json.encode(query_spec(schema)))),
        Encoder(schema, "query"),
    )
    rng = np.random.default_rng(3)
    for body in bodies(20, num_ads=1_000, candidates=1, stage="light"):
        query = dict(body["query"])
        for name in rng.choice(sorted(query), 3, replace=False):
            if isinstance(query[name], dict):
                count = int(rng.integers(0, 70))
                query[name] = {field: (values * 2)[-count:] if count else [] for field, values in query[name].items()}
                query[name]["time"] = sorted(query[name]["time"])
            else:
                query.pop(name)
        wanted, _ = encode_request(encoder, query, event_time_us=MOMENT)
        ids, floats = plain(query, MOMENT)
        np.testing.assert_array_equal(ids, wanted.ids[0])
        np.testing.assert_array_equal(floats, wanted.floats[0])


@pytest.mark.parametrize("count", [1, 7, 40, 90])
def test_plain_order_equals_ours_with_ties(count: int) -> None:
    utilities = np.random.default_rng(count).integers(0, 9, 60).astype(np.float64)
    np.testing.assert_array_equal(best(utilities, count), top_positions(utilities, count))


def test_blocks_of_ads_differ_by_id_and_number_alone() -> None:
    first, second = ads_block(0), ads_block(BLOCK)
    differing = {name for name in first.column_names if not first[name].equals(second[name])}
    assert differing == {"ad_id", "ad_id_0", "ad_dense_0"}


def expected(*, light: dict[str, float] | None = None) -> Expected:
    utilities = {"a": 0.5, "b": 0.4, "c": 0.39999, "d": 0.1}
    return Expected(utilities=utilities, bids=dict.fromkeys(utilities, 1.0), count=3, light=light)


def test_answers_may_differ_in_ties_alone() -> None:
    assert compare("system", ["a", "b", "c"], expected(), 1e-4) == 0
    assert compare("system", ["a", "c", "b"], expected(), 1e-4) == pytest.approx(1e-5)
    for wrong in (["b", "a", "c"], ["a", "b", "d"]):
        with pytest.raises(DifferentAnswerError, match="system: . at place . of utility"):
            compare("system", wrong, expected(), 1e-4)
    for wrong in (["a", "b"], ["a", "a", "b"], ["a", "b", "x"]):
        with pytest.raises(DifferentAnswerError, match="expected 3 different ones of the best"):
            compare("system", wrong, expected(), 1e-4)


def test_survivors_are_judged_by_what_chose_them() -> None:
    """Of a full answer the order is that of the heavy ranker, and the ads are those of the light one."""
    light = {"a": 0.1, "b": 0.9, "c": 0.8, "d": 0.7}
    assert compare("system", ["b", "c", "d"], expected(light=light), 1e-4) == 0
    with pytest.raises(DifferentAnswerError, match="expected d"):
        compare("system", ["a", "b", "c"], expected(light=light), 1e-4)
