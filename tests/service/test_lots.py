"""What is counted in lots is told as if prometheus_client had counted each event at once."""

import os
import re
import subprocess
import sys
import threading
from collections import Counter as Tally
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from loading import load
from service.answer_counts import COUNTS, MAX_NOTED, SECONDS, STAGES
from service.api import Degraded, Dropped, Timing
from service.features import FeatureNotes, Report
from service.lots import LateCounters
from service.process_state import COUNTS_VARIABLE
from service.request_ids import new_request_id
from service.telemetry import Telemetry


@pytest.fixture(scope="module")
def counting():
    return load("service/counting.py")


def text_of(registry) -> str:
    """An exposition without the moments at which metrics were made."""
    return re.sub(r"(?m)^.*_created.*\n", "", generate_latest(registry).decode())


@pytest.mark.parametrize("seed", range(3))
def test_histograms_of_one_process_are_told_as_if_each_value_were_observed(counting, seed):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counting.counted(ours, seed, in_lots=True)
    counting.counted(theirs, seed, in_lots=False)
    assert text_of(ours) == text_of(theirs)
    assert 'labelled_bucket{le="+Inf",stage="light"} 100.0' in text_of(ours)
    created = re.findall(rb"(?m)^(\S+_created\S*)", generate_latest(ours))
    assert created == re.findall(rb"(?m)^(\S+_created\S*)", generate_latest(theirs))


def test_histograms_of_several_processes_are_added_up_as_if_each_value_were_observed(tmp_path):
    script = (
        "import sys; from prometheus_client import CollectorRegistry; from counting import counted;"
        "counted(CollectorRegistry(), int(sys.argv[1]), in_lots=sys.argv[2] == 'lots')"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    told = {}
    for way in ("lots", "each"):
        directory = tmp_path / way
        directory.mkdir()
        environment = os.environ | {COUNTS_VARIABLE: str(directory), "PYTHONPATH": paths}
        for seed in range(2):
            command = [sys.executable, "-c", script, str(seed), way]
            subprocess.run(command, env=environment, check=True, timeout=60)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(directory))
        told[way] = sorted(generate_latest(registry).decode().splitlines())
        assert len(list(directory.glob("histogram_*.db"))) == 2
    assert told["lots"] == told["each"]
    assert 'labelled_bucket{le="+Inf",stage="light"} 200.0' in told["lots"]


def test_nothing_that_threads_note_is_lost_or_counted_twice():
    registry, late = CollectorRegistry(), LateCounters()
    counters = [Counter(f"counter_{number}", "A text.", registry=registry) for number in range(3)]
    over = threading.Event()

    def note(number: int) -> None:
        for amount in range(2_000):
            late.note(counters[number], amount % 3)

    def add_up() -> None:
        while not over.is_set():
            late.add_up()

    adding = [threading.Thread(target=add_up) for _ in range(2)]
    noting = [threading.Thread(target=note, args=(number,)) for number in (0, 1, 2, 2)]
    for thread in adding + noting:
        thread.start()
    for thread in noting:
        thread.join()
    over.set()
    for thread in adding:
        thread.join()
    late.add_up()
    total = sum(amount % 3 for amount in range(2_000))
    assert [registry.get_sample_value(f"counter_{number}_total") for number in range(3)] == [total, total, 2 * total]


def an_outcome(rng) -> SimpleNamespace:
    def ids(most):
        return ["x"] * int(rng.integers(0, most))

    dropped = {reason: ids(3) for reason in Dropped.__struct_fields__ if rng.random() < 0.5}
    reason = str(rng.choice(["deadline", "failed", "absent", "overloaded"]))
    missing = [name for name in ("age", "country") if rng.random() < 0.2]
    rows = [rng.integers(-1, 3, int(rng.integers(0, 5))) for _ in range(2)]
    return SimpleNamespace(
        response=SimpleNamespace(
            arm=None,
            timing_ms=Timing(**{stage: float(rng.integers(0, 1 << 12)) for stage in STAGES}),
            dropped=Dropped(**dropped),
            degraded=Degraded(stage="heavy", reason=reason, detail="") if rng.random() < 0.2 else None,
        ),
        num_candidates=int(rng.choice([*COUNTS, 7, 3_000])),
        notes=FeatureNotes(
            unknown=ids(2), reports={"a": Report(missing[:1], []), "b": Report(missing, []), "c": Report([], [])}
        ),
        result=SimpleNamespace(resolved=SimpleNamespace(pools=[SimpleNamespace(rows=one) for one in rows])),
    )


def one_by_one(outcomes, statuses) -> Tally:
    """Samples as they must be, from each event alone."""
    samples: Tally = Tally()
    for status in statuses:
        samples[f'adsieve_rank_requests_total{{status="{status}"}}'] += 1
    for outcome in outcomes:
        response = outcome.response
        values = [(f'stage_seconds#stage="{one}"', SECONDS, getattr(response.timing_ms, one) / 1000) for one in STAGES]
        for name, buckets, value in [*values, ("candidates#", COUNTS, outcome.num_candidates)]:
            metric, _, label = name.partition("#")
            after = f"{{{label}}}" if label else ""
            samples[f"adsieve_{metric}_sum{after}"] += value
            samples[f"adsieve_{metric}_count{after}"] += 1
            for bound in (*buckets, float("inf")):
                le = "+Inf" if bound == float("inf") else str(float(bound))
                inside = f'le="{le}",{label}'.rstrip(",")
                samples[f"adsieve_{metric}_bucket{{{inside}}}"] += value <= bound
        for reason in Dropped.__struct_fields__:
            samples[f'adsieve_dropped_ads_total{{reason="{reason}"}}'] += len(getattr(response.dropped, reason))
        if response.degraded:
            samples[f'adsieve_degraded_requests_total{{reason="{response.degraded.reason}"}}'] += 1
        samples["adsieve_unknown_features_total"] += len(outcome.notes.unknown)
        for name in {name for report in outcome.notes.reports.values() for name in report.missing}:
            samples[f'adsieve_missing_features_total{{feature="query.{name}"}}'] += 1
        for pool in outcome.result.resolved.pools:
            samples["adsieve_cold_ads_total"] += sum(row < 0 for row in pool.rows)
    return samples


def told_by(telemetry: Telemetry) -> dict[str, float]:
    lines = telemetry.exposition()[0].decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_answers_are_counted_as_one_by_one():
    rng, telemetry = np.random.default_rng(5), Telemetry()
    outcomes, statuses = [an_outcome(rng) for _ in range(200)], rng.choice([200, 200, 422, 404], 250).tolist()
    for number, outcome in enumerate(outcomes):
        telemetry.observe(outcome, may_be_cold=True)
        if number % 70 == 0:
            telemetry.add_up()
    for status in statuses:
        telemetry.count(status)
    told, expected = told_by(telemetry), one_by_one(outcomes, statuses)
    assert {name: told.get(name) for name in expected} == pytest.approx(dict(expected), rel=1e-12)
    assert told_by(telemetry) == told  # nothing is counted twice
    telemetry.observe(outcomes[0], may_be_cold=False)
    assert told_by(telemetry)["adsieve_cold_ads_total"] == told["adsieve_cold_ads_total"]


def test_series_of_known_labels_are_there_before_the_first_event():
    told, series = told_by(Telemetry()), {"stage_seconds_count": [("stage", STAGES)]}
    series |= {
        "dropped_ads_total": [("reason", Dropped.__struct_fields__)],
        "rank_requests_total": [("status", (200, 422, 503))],
    }
    series |= {"degraded_requests_total": [("reason", ("deadline", "failed", "absent", "overloaded"))]}
    series |= {"problems_total": [("kind", ("deadline", "invalid-value", "not-serving", "overloaded"))]}
    series |= {"shadow_requests_total": [("result", ("ranked", "dropped", "failed"))]}
    for name, ((label, values),) in series.items():
        assert {told[f'adsieve_{name}{{{label}="{value}"}}'] for value in values} == {0}


def test_notes_never_grow_without_end_though_nobody_adds_them_up():
    telemetry = Telemetry()
    for _ in range(MAX_NOTED + 1):
        telemetry.count(503)
    count = telemetry._registry.get_sample_value("adsieve_rank_requests_total", {"status": "503"})
    assert count == MAX_NOTED + 1


def test_what_is_in_flight_is_asked_for_when_it_is_told():
    telemetry, numbers = Telemetry(), iter([3, 0])
    telemetry.watch_in_flight(lambda: next(numbers))
    assert [told_by(telemetry)["adsieve_rank_in_flight"] for _ in range(2)] == [3, 0]


def test_request_ids_differ_also_in_a_child():
    ids = [new_request_id() for _ in range(600)]
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, new_request_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    ids += [os.read(reading, 32).decode(), *(new_request_id() for _ in range(600))]
    os.close(reading)
    os.close(writing)
    assert len(set(ids)) == len(ids)
