"""Survivors by utility, with quotas and a drawn share, against a plain way over one ad at a time."""

import math
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.deadline import Deadline
from service.ranker import rank
from service.settings import Settings
from service.survivors import choose_survivors
from service.wire import decode_request

NAMES = ("standard", "shopping", "third")


def pools(utilities):
    """Pools whose ads stand in the request in turn; ``utilities`` by pool."""
    order = sorted((place, owner) for owner, values in enumerate(utilities) for place in range(len(values)))
    positions = [[at for at, (_, of) in enumerate(order) if of == owner] for owner in range(len(utilities))]
    return [
        SimpleNamespace(
            release=SimpleNamespace(scenario=name),
            pool=SimpleNamespace(rows=np.arange(len(values)), positions=np.array(where, np.intp)),
            best=lambda k: None,
            utilities=np.array(values, float),
        )
        for name, values, where in zip(NAMES, utilities, positions, strict=False)
    ]


def chosen(scored, k, *, quotas=None, explore_share=0.0, request_id="r"):
    found = choose_survivors(scored, k, quotas=quotas or {}, explore_share=explore_share, request_id=request_id)
    return [(owner, place) for owner, place in zip(found.owners.tolist(), found.places.tolist(), strict=True)], found


def plain(scored, k, quotas):
    """Best first, ties by position in the request; quotas are reserved first."""
    ads = sorted(
        (-part.utilities[place], part.pool.positions[place], owner, place)
        for owner, part in enumerate(scored)
        for place in range(len(part.utilities))
    )
    kept = []
    if len(scored) > 1:
        for owner, part in enumerate(scored):
            count = math.floor(quotas.get(part.release.scenario, 0) * k + 1e-9)
            kept += [ad for ad in ads if ad[2] == owner][:count]
    kept += [ad for ad in ads if ad not in kept][: k - len(kept)]
    return [(owner, place) for _, _, owner, place in sorted(kept)]


def probability_of_draw(scored, ad, k, quotas, share):
    """Over how many are drawn, and which."""
    total, result = sum(len(part.utilities) for part in scored), 0.0
    for number in range(1, k + 1):
        probability = max(0.0, 1 - abs(k * share - number))  # a mean between two whole numbers
        if probability and ad not in plain(scored, k - number, quotas):
            result += probability * number / (total - k + number)
    return result


values = st.lists(st.integers(0, 5), max_size=15)
several = st.lists(values, min_size=1, max_size=3)
shares = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.1, 0.25, 1 / 3]))


@given(several, st.integers(1, 20), shares)
def test_survivors_equal_the_plain_way(utilities, k, quotas):
    scored = pools(utilities)
    found, ranking = chosen(scored, k, quotas=quotas)
    assert found == plain(scored, k, quotas)
    assert not ranking.explored.any()


@given(several, st.integers(1, 20), shares, st.floats(0, 0.5), st.text(max_size=5))
def test_drawn_ads_take_the_last_places_and_are_none_of_the_best(utilities, k, quotas, share, request_id):
    scored = pools(utilities)
    total = sum(len(values) for values in utilities)
    found, ranking = chosen(scored, k, quotas=quotas, explore_share=share, request_id=request_id)
    num_drawn = int(ranking.explored.sum())
    assert num_drawn in ((math.floor(k * share), math.ceil(k * share)) if total > k else (0,))
    assert found[: k - num_drawn] == plain(scored, k - num_drawn, quotas)
    assert len(found) == len(set(found)) == min(k, total)
    assert ranking.explored.tolist() == [False] * (len(found) - num_drawn) + [True] * num_drawn
    drawn = zip(found[k - num_drawn :], ranking.propensities[k - num_drawn :], strict=True) if num_drawn else ()
    for ad, propensity in drawn:
        assert propensity == pytest.approx(probability_of_draw(scored, ad, k, quotas, share), abs=1e-7)
    assert chosen(scored, k, quotas=quotas, explore_share=share, request_id=request_id)[0] == found


def test_ads_are_drawn_as_often_as_their_propensity_says():
    scored = pools([[9, 8, 7, 3, 2, 1, 0]])
    times = np.zeros(7)
    for number in range(4_000):
        found, ranking = chosen(scored, 4, explore_share=0.5, request_id=f"r-{number}")
        times[[place for _, place in found]] += 1
    assert times[:2].tolist() == [4_000, 4_000]
    # Binomial: 4,000 draws at 2 of 5 have a standard deviation of 31.
    np.testing.assert_allclose(times[2:], 1_600, atol=160)
    assert set(ranking.propensities[ranking.explored]) == {0.4}


@pytest.mark.parametrize(("k", "share"), [(20, 0.02), (5, 0.3)])
def test_a_share_of_less_than_a_whole_ad_is_drawn_by_chance_as_often_as_logged(k, share):
    total, requests = 30, 6_000
    scored = pools([range(total, 0, -1)])
    times, propensities = np.zeros(total), {}
    for number in range(requests):
        found, ranking = chosen(scored, k, explore_share=share, request_id=f"r-{number}")
        for (_, place), propensity in zip(found, ranking.propensities if ranking.explored.any() else (), strict=False):
            if not np.isnan(propensity):
                times[place] += 1
                propensities.setdefault(place, set()).add(propensity)
    # Of so many requests k * share are expected, with a standard deviation of at most a half each.
    assert times.sum() / requests == pytest.approx(k * share, abs=5 * 0.5 / requests**0.5)
    assert not times[: k - math.ceil(k * share)].any()
    for place in range(k - math.ceil(k * share), total):
        (propensity,) = propensities[place]  # of an ad it is the same in every request
        deviation = (propensity * (1 - propensity) / requests) ** 0.5
        assert times[place] / requests == pytest.approx(propensity, abs=5 * deviation)


def test_a_request_marks_what_was_drawn(snapshot, settings, example_query):
    ids = [f"standard-{i}" for i in range(1, 60)]
    body = {"scenario": "standard", "request_id": "r-7", "query": example_query(1), "candidates": ids, "survivors": 10}
    exploring = settings.model_copy(update={"explore_share": 0.3})
    request = decode_request(msgspec.json.encode(body))
    with_draw = rank(request, snapshot, exploring, Deadline()).response.ads
    without = rank(request, snapshot, settings, Deadline()).response.ads
    assert sum(with_draw.explored) == 3
    assert not any(without.explored)
    fewer = decode_request(msgspec.json.encode(body | {"survivors": 7}))
    best = set(rank(fewer, snapshot, settings, Deadline()).response.ads.ids)
    kept = {ad_id for ad_id, explored in zip(with_draw.ids, with_draw.explored, strict=True) if not explored}
    assert kept == best
    assert with_draw.utilities == sorted(with_draw.utilities, reverse=True)


def test_quotas_of_more_than_all_are_refused(tmp_path):
    with pytest.raises(ValidationError, match=r"survivor_quotas\n.*at most 1 in sum, got 1.2"):
        Settings(store=tmp_path, survivor_quotas={"standard": 0.7, "shopping": 0.5})
