"""What updates do to a running index: the rules of effect, one test each, and against a reference in plain Python."""

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from contracts.release import UpdatePosition
from indexing.compaction import compact
from indexing.embed import AdEmbedder
from indexing.live import LiveIndex
from indexing.overlay_content import NewAd, content_table
from indexing.overlay_files import MAY_BE_SHOWN
from indexing.update_record import Content, Update

LATER = 2 * 10**15


@pytest.fixture(scope="module")
def active(built: Any) -> list[str]:
    """Ids of ads that the catalogue has as active."""
    return [ad_id for ad_id, row in built.catalogue.items() if row["status"] in ("active", None)]


def test_an_index_without_updates_reads_as_the_index(day: Any, built: Any, rules: Any) -> None:
    plain = LiveIndex(built.index, built.two_tower.schema)
    day.apply()
    ids = list(built.catalogue)
    for live in (plain, day.open()):
        assert rules.seen(live, ids) == rules.wanted(rules.expected(built.catalogue, []))
        rows = live.lookup(ids)
        assert rows.tolist() == built.index.id_table.lookup(ids).tolist()
        assert (live.pins(rows).vectors == built.index.vectors[rows]).all()
        assert live.ids(rows) == ids
        assert live.num_rows == len(built.index)
    assert plain.position is None
    assert day.open().position is None


def test_states_change_what_is_served_and_the_latest_in_the_log_counts(day: Any, active: list[str]) -> None:
    first, second, third, fourth = active[:4]
    live = day.after(
        Update(ad_id=first, at=LATER, takedown=True),
        Update(ad_id=second, at=LATER, status="paused"),
        Update(ad_id=third, at=LATER, budget=0.0),
        Update(ad_id=fourth, at=LATER, bid=9.5),
    )
    rows = live.lookup(active[:4])
    assert live.servable(rows).tolist() == [False, False, False, True]
    assert live.bids(rows)[3] == 9.5
    day.after(
        Update(ad_id=first, at=0, takedown=False),
        Update(ad_id=second, at=0, status="active"),
        Update(ad_id=third, at=0, budget=None),
        Update(ad_id=fourth, at=0, bid=None),
    )
    assert live.servable(rows).all(), "a reader sees it without opening anew, and a clock that moved back is nothing"
    assert np.isnan(live.bids(rows)[3])


def test_a_takedown_survives_content_and_status_and_a_new_index(
    day: Any, new_day: Any, active: list[str], content: Any, tmp_path: Path
) -> None:
    ad_id = active[0]
    live = day.after(
        Update(ad_id=ad_id, at=0, takedown=True),
        Update(ad_id=ad_id, at=LATER, status="active", budget=50.0, content=content()),
    )
    assert live.servable(live.lookup([ad_id])).tolist() == [False]
    day.restart()
    compact(day.log, [day.log.end], now_us=10**18)
    rebuilt = new_day(tmp_path, merged=day.log.end)  # as the next night's index, whose rows are all newer
    shutil.rmtree(rebuilt.overlay)
    rebuilt.apply()
    live = rebuilt.open()
    assert live.servable(live.lookup([ad_id])).tolist() == [False]
    rebuilt.close()


def test_status_and_bid_that_a_build_has_merged_count_only_against_older_rows(
    new_day: Any, built: Any, active: list[str], tmp_path: Path
) -> None:
    ad_id, valid_from = active[0], built.catalogue[active[0]]["valid_from"]
    day = new_day(tmp_path)
    day.log.append([Update(ad_id=ad_id, at=valid_from, status="paused", bid=7.0)])
    for merged, seen in ((None, False), (day.log.end, True), (UpdatePosition(log="another", seq=9), False)):
        day = new_day(tmp_path, merged=merged)
        day.apply()
        live = day.open()
        rows = live.lookup([ad_id])
        assert live.servable(rows).tolist() == [seen]
        assert (live.bids(rows)[0] == 7.0) != seen
        day.close()
        shutil.rmtree(day.overlay)


def test_content_brings_new_and_changed_ads_with_their_features(
    day: Any, built: Any, active: list[str], content: Any
) -> None:
    changed, old = active[0], day.index.id_table.lookup(active[:1])
    update = Update(ad_id=changed, at=LATER, content=content(price=11.0))
    new = Update(ad_id="brand-new", at=LATER, bid=4.0, content=content(category="Bücher"))
    live = day.after(update, new, Update(ad_id="elsewhere", at=LATER, content=content(scenario="standard")))
    rows = live.lookup([changed, "brand-new", "elsewhere", active[1]])
    assert rows[:3].tolist() == [64, 65, -1]
    assert live.ids(rows[[0, 1, 3]]) == [changed, "brand-new", active[1]]
    assert live.bids(rows[[1]]).tolist() == [4.0]
    assert live.servable(rows[:2]).all()
    assert live.bids(rows[[0]]).tolist() == pytest.approx(live.bids(old).tolist(), nan_ok=True), "bid and status stay"
    embedder = AdEmbedder(built.two_tower, built.heavy, precision="fp32", threads=1)
    told = [NewAd(one.ad_id, 1, one.content) for one in (update, new)]
    stored = embedder.embed(content_table(told, ["category", "price", "image"]), source="", check=0).ads
    pins, heavy = live.pins(rows), live.heavy(rows)
    assert (pins.vectors[:2] == stored.vectors).all()
    assert (pins.bias[:2] == stored.bias).all()
    assert (heavy.ids[:2] == stored.heavy.ids).all()
    assert (heavy.floats[:2] == stored.heavy.floats).all()
    assert (pins.vectors[3] == built.index.vectors[rows[3]]).all()
    assert live.excluded(["advertiser-1"], rows[:2]).all()


def test_only_later_content_counts(day: Any, built: Any, active: list[str], content: Any) -> None:
    ad_id = active[0]
    earlier = content(valid_from=built.catalogue[ad_id]["valid_from"])
    live = day.after(Update(ad_id=ad_id, at=LATER, content=earlier))
    assert live.lookup([ad_id])[0] < 64
    live = day.after(
        Update(ad_id=ad_id, at=0, content=content(valid_from=LATER + 2)),
        Update(ad_id=ad_id, at=0, content=content(valid_from=LATER + 1, price=99.0)),
    )
    assert live.lookup([ad_id]).tolist() == [64]
    assert live.num_rows == 65


def test_an_ad_that_moves_to_another_scenario_is_unknown_here_until_it_returns(
    day: Any, active: list[str], content: Any
) -> None:
    ad_id = active[0]
    live = day.after(Update(ad_id=ad_id, at=0, content=content(scenario="standard", valid_from=LATER)))
    assert live.lookup([ad_id]).tolist() == [-1]
    assert not live.servable(day.index.id_table.lookup([ad_id])).any()
    day.restart()
    live = day.after(Update(ad_id=ad_id, at=0, content=content(valid_from=LATER + 1)))
    assert live.lookup([ad_id]).tolist() == [65]
    assert live.servable(np.array([65])).all()


@pytest.mark.parametrize(
    ("features", "fault"),
    [
        ({"image": [1e300, 0.0]}, "heavy image: holds NaN, an infinity or a number beyond float32"),
        ({"price": "dear"}, "column 'price' has type string, expected numbers"),
        ({"image": [0.5]}, "heavy image: has a list of another length, expected 2 numbers or null"),
        ({"category": {"a": 1}}, "column 'category'"),
    ],
)
def test_invalid_content_is_left_out_and_counted_and_the_rest_goes_on(
    day: Any, content: Any, features: dict[str, Any], fault: str
) -> None:
    whole = content()
    live = day.after(
        Update(ad_id="n-1", at=0, content=whole),
        Update(ad_id="n-2", at=0, content=content(**features)),
        Update(ad_id="n-3", at=0, content=Content(scenario="shopping", valid_from=1, features={"price": 1.0})),
        Update(ad_id="n-4", at=0, content=whole),
    )
    assert (live.lookup(["n-1", "n-2", "n-3", "n-4"]) >= 0).tolist() == [True, False, False, True]
    faults = day.writer.faults
    assert any(fault in found for found in faults)
    assert faults["lacks the column category"] == faults["lacks the column image"] == 1


@pytest.mark.parametrize("servable", [True, False])
def test_search_finds_what_an_exhaustive_search_of_the_updated_ads_finds(
    day: Any, built: Any, active: list[str], content: Any, servable: bool
) -> None:
    rng = np.random.default_rng(0)
    updates = [Update(ad_id=ad_id, at=LATER, bid=float(bid)) for ad_id, bid in zip(active[:9], range(9), strict=True)]
    updates += [Update(ad_id=ad_id, at=LATER, content=content(price=5.0)) for ad_id in active[5:12]]
    updates += [
        Update(ad_id=f"n-{at}", at=LATER, bid=2.0, content=content(price=float(at), category="Bücher"))
        for at in range(9)
    ]
    updates += [Update(ad_id=ad_id, at=LATER, takedown=True) for ad_id in [active[0], active[6], "n-0"]]
    live = day.after(*updates)
    rows = live.lookup([*built.catalogue, *(f"n-{at}" for at in range(9))])
    for _ in range(20):
        query, weights = rng.normal(size=(2, 6)).astype(np.float32), rng.random(2).astype(np.float32)
        allowed = live.allowed(servable=servable)
        candidates = rows[live.servable(rows)] if servable else rows[live.withdrawn(rows) == MAY_BE_SHOWN]
        found = live.search(query, weights, 12, allowed)
        scores = _scores(live, candidates, query, weights)
        best = candidates[np.argsort(-scores, kind="stable")[:12]]
        assert sorted(found.tolist()) == sorted(best.tolist())
        assert (np.diff(_scores(live, found, query, weights)) <= 1e-6).all()


def _scores(live: LiveIndex, rows: np.ndarray, query: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """log bid + w logit, an ad at a time."""
    scores = []
    for row in rows:
        pins, bid = live.pins(np.array([row])), float(live.bids(np.array([row]))[0])
        log_bid = 0.0 if np.isnan(bid) else max(np.log(bid), -100.0) if bid > 0 else -100.0
        code = int(live.objectives(np.array([row]))[0])
        objective = live.index.manifest.objectives[code] if code >= 0 else "click"
        if objective == "impression":
            scores.append(log_bid)
            continue
        head = ["click", "conversion"].index(objective)
        vector = pins.vectors.reshape(2, 4)[head].astype(np.float64)
        logit = vector @ query[head, :4] + pins.bias[0, head] * query[head, 4] + query[head, 5]
        scores.append(log_bid + weights[head] * logit)
    return np.array(scores)


def test_a_row_that_was_looked_up_stays_what_it_was(day: Any, active: list[str], content: Any) -> None:
    live = day.after(Update(ad_id=active[0], at=0, content=content(price=1.0)))
    old = live.lookup(active[:2])
    before = live.pins(old).vectors.tolist()
    day.after(Update(ad_id=active[0], at=0, content=content(price=500.0, valid_from=4 * 10**15)))
    assert live.pins(old).vectors.tolist() == before
    assert live.ids(old) == active[:2]
    assert live.lookup(active[:1]).tolist() == [65]


IDS = ["ad-1", "ad-2", "ad-3", "ad-0-ü", "ad-9", "new-1", "new-2"]
TIMES = st.sampled_from([0, 10**14, 5 * 10**14, 10**15, 2 * 10**15, 2 * 10**15 + 1])
CONTENTS = st.builds(
    Content,
    scenario=st.sampled_from(["shopping", "shopping", "standard"]),
    valid_from=TIMES,
    features=st.fixed_dictionaries(
        {
            "category": st.sampled_from(["shoes", None]),
            "price": st.sampled_from([1.0, 2.5]),
            "image": st.sampled_from([[0.5, 0.25], None, [0.5]]),
        }
    ),
)
UPDATES = st.builds(
    Update,
    ad_id=st.sampled_from(IDS),
    at=TIMES,
    status=st.sampled_from([None, None, "active", "paused"]),
    bid=st.sampled_from([UNSET, UNSET, None, 0.5, 2.0]),
    takedown=st.sampled_from([None, None, None, True, False]),
    budget=st.sampled_from([UNSET, UNSET, None, 0.0, 10.0]),
    content=st.one_of(st.none(), CONTENTS),
).filter(lambda update: update.has_state or update.content is not None)
STEPS = st.lists(
    st.one_of(
        st.lists(UPDATES, min_size=1, max_size=6),
        st.sampled_from(["compact", "reopen", "rebuild", "merge"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_any_interleaving_equals_the_reference(
    new_day: Any, built: Any, build: Any, rules: Any, steps: list[Any]
) -> None:
    with quiet(), tempfile.TemporaryDirectory() as name:
        directory, said, merged, of, moved = Path(name), [], None, built, set()
        ids = sorted({*built.catalogue, *IDS})
        day = new_day(directory)
        for number, step in enumerate(steps):
            match step:
                case "compact":
                    floor = compact(day.log, [merged], keep_days=0, now_us=10**18).floor
                    # An index does not know since when an ad that it lacks is elsewhere, and the log forgets it here
                    # too: only an overlay that was there before may know, so such ads are not compared any more.
                    moved |= {one.ad_id for one in said if one.content and one.content.scenario == rules.ELSEWHERE}
                    said = [replace(one, content=one.content if one.seq > floor else None) for one in said]
                case "reopen":
                    day.restart()
                case "rebuild" | "merge":
                    day.close()
                    shutil.rmtree(day.overlay, ignore_errors=True)
                    if step == "merge" and day.log.end is not None:
                        merged, rows = day.log.end, rules.merge(of.catalogue, said, _is_valid)
                        of = build(directory / str(number), _table(rows))
                    day = new_day(directory, of, merged=merged)
                case list():
                    end = day.log.append(step)
                    said += [replace(update, seq=end.seq - len(step) + place) for place, update in enumerate(step, 1)]
            day.apply()
            live, ads = day.open(), rules.expected(of.catalogue, said, merged.seq if merged else 0, _is_valid)
            ads = {ad_id: ad for ad_id, ad in ads.items() if ad_id not in moved}
            assert rules.seen(live, [ad_id for ad_id in ids if ad_id not in moved]) == rules.wanted(ads)
            stopped = Counter(ad.withdrawn for ad in ads.values())
            if not moved:
                assert (live.notes.taken_down, live.notes.without_budget) == (stopped["takedown"], stopped["budget"])
            _same_content(live, ads)
        day.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Thousands of lines about invalid content tell nothing here."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _table(rows: dict[str, dict[str, Any]]) -> pa.Table:
    columns = ("ad_id", "scenario", "status", "bid", "objective", "advertiser_id", "category", "price", "image")
    table = {name: [row.get(name) for row in rows.values()] for name in columns}
    times = pa.array([row["valid_from"] for row in rows.values()], pa.timestamp("us", "UTC"))
    return pa.table({**table, "valid_from": times})


def _is_valid(content: Content) -> bool:
    return content.features["image"] is None or len(content.features["image"]) == 2


def _same_content(live: LiveIndex, ads: dict[str, Any]) -> None:
    for ad_id, ad in ads.items():
        row = live.lookup([ad_id])
        if ad.content is None:
            assert row[0] < len(live.index)
        else:
            own = row[0] - len(live.index)
            assert live._overlay.rows["valid_from"][own] == ad.content.valid_from
