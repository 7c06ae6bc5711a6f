"""Real processes, killed at random moments while they append, apply and compact: nothing is lost or comes back."""

import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from indexing.compaction import compact
from indexing.overlay_stops import Stops
from indexing.stores import open_store
from indexing.update_log import UpdateLog
from indexing.update_record import Update

ROOT = Path(__file__).parents[3]
KILLS, LOT = 20, 500
APPEND = """
    from indexing.update_record import Update
    number = log.end.seq if log.end else 0
    while True:
        three = [Update(ad_id=ids[(number + place) % len(ids)], at=0, bid=float(number % 7)) for place in range(3)]
        number = log.append(three).seq
        print(number, flush=True)
"""
APPLY = """
    from contracts.bundle import open_bundle
    from indexing.index import Index
    from indexing.overlay_stops import Stops
    from indexing.overlay_writer import OverlayWriter
    built, towers, heavy, stops = map(Path, sys.argv[3:7])
    bundles = open_bundle(towers), open_bundle(heavy)
    writer = OverlayWriter(Index.open(built, verify=False), *bundles, log, Path(sys.argv[2]), stops=Stops(stops))
    while True:
        writer.apply_pending(max_contents=3)
        print("applied", flush=True)
"""
COMPACT = """
    from indexing.compaction import compact
    while True:
        compact(log, [log.end], keep_days=1_000_000)
        print("compacted", flush=True)
"""


def killed(body: str, *arguments: object, after_s: float) -> list[str]:
    """Start a process, kill it some time after it began its work; returns what it had printed."""
    head = """
        import sys
        from pathlib import Path
        from indexing.update_log import UpdateLog
        log, ids = UpdateLog(Path(sys.argv[1])), [f"ad-{number}" for number in range(40)]
    """
    program = textwrap.dedent(head) + textwrap.dedent(body)
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        return [first, *process.stdout.read().splitlines()]


@pytest.mark.slow
def test_an_append_that_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    log, rng = UpdateLog(tmp_path / "updates"), random.Random(0)
    for _ in range(KILLS):
        printed = killed(APPEND, log.directory, after_s=rng.random() * 0.05)
        acknowledged = int([line for line in printed if line.strip().isdigit()][-1])
        numbers = [update.seq for update in UpdateLog(log.directory).read()]
        assert numbers == sorted(set(numbers)), "those of an append that was cut off are not given again"
        assert acknowledged in numbers
        assert len(numbers) % 3 == 0, "an append is whole or not there"


@pytest.mark.slow
def test_a_compaction_that_is_killed_leaves_the_same_states(tmp_path: Path) -> None:
    log, rng = UpdateLog(tmp_path / "updates"), random.Random(1)
    latest = {}
    for round_ in range(KILLS):
        updates = [Update(ad_id=f"ad-{number % 50}", at=0, bid=float(number * round_)) for number in range(2000)]
        log.append([*updates, Update(ad_id=f"down-{round_}", at=0, takedown=True)])
        latest |= {update.ad_id: update.bid for update in updates}
        killed(COMPACT, log.directory, after_s=rng.random() * 0.1)
        read = list(UpdateLog(log.directory).read())
        assert latest == {update.ad_id: update.bid for update in read if update.ad_id in latest}
        assert sum(update.takedown is True for update in read) == round_ + 1
    compact(log, [log.end], keep_days=1_000_000)
    assert len(list(log.directory.glob("*.jsonl"))) <= 2


@pytest.mark.slow
def test_a_writer_that_is_killed_anywhere_is_followed_by_one_that_completes(
    new_day: Any, content: Any, rules: Any, tmp_path: Path
) -> None:
    day, rng, said = new_day(tmp_path), random.Random(2), list[Update]()
    stops = tmp_path / "stops"
    parts = [day.log.directory, day.overlay, day.built.path, day.built.two_tower.path, day.built.heavy.path, stops]
    names = [*day.built.catalogue, *(f"new-{number}" for number in range(10))]
    for round_ in range(KILLS):
        for number in range(40):
            ad_id = rng.choice(names)
            scenario = rng.choice(["shopping", "shopping", "standard"])
            change = rng.choice(
                [
                    {"takedown": rng.random() < 0.5},
                    {"bid": float(number)},
                    {"content": content(scenario=scenario, valid_from=3 * 10**15 + 100 * round_ + number)},
                ]
            )
            said.append(Update(ad_id=ad_id, at=0, **change))
        day.log.append(said[-40:])
        killed(APPLY, *parts, after_s=rng.random() * 0.03)
        day.apply()
        live = day.open()
        assert rules.seen(live, names) == rules.wanted(rules.expected(day.built.catalogue, said))
        day.restart()
        day.close()
        down = {one.ad_id for one in Stops(stops).held(None).updates()}
        assert down == {ad_id for ad_id, is_down in takedowns(said).items() if is_down}


def takedowns(said: list[Update]) -> dict[str, bool]:
    return {one.ad_id: one.takedown for one in said if one.takedown is not None}


@pytest.mark.slow
def test_the_command_that_is_killed_anywhere_took_all_or_nothing(built: Any, tmp_path: Path) -> None:
    store, lot = tmp_path / "store", tmp_path / "lot.jsonl"
    open_store(store).publish(two_tower=built.two_tower.path, heavy=built.heavy.path, index=built.path)
    lot.write_text("".join(f'{{"ad_id": "ad-{number}", "takedown": true}}\n' for number in range(LOT)))
    command = [sys.executable, "-m", "adsieve", "index", "update", str(lot), "--store", str(store)]
    started = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    lasts_s, rng, numbers = time.monotonic() - started, random.Random(3), list[int]()
    for turn in range(KILLS):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(lasts_s * (0.4 + 0.6 * rng.random() if turn % 2 else rng.random()))
            process.send_signal(signal.SIGKILL)
        before, numbers = numbers, [update.seq for update in UpdateLog(store / "updates").read()]
        assert numbers[: len(before)] == before, "nothing that was taken is lost"
        assert len(numbers) % LOT == 0, "an append is whole or not there"
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    after = list(UpdateLog(store / "updates").read())
    assert [update.seq for update in after][: len(numbers)] == numbers
    assert len(after) == len(numbers) + LOT
