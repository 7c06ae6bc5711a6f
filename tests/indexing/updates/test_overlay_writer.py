"""Who writes an overlay, when it is trusted and when it is built anew, and what readers see meanwhile."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.errors import AdsieveError
from contracts.release import UpdatePosition
from indexing import overlay_files, overlay_rows
from indexing.live import LiveIndex
from indexing.overlay_private import private_live_index
from indexing.update_log import UpdateLog
from indexing.update_record import Update

LATER = 2 * 10**15


@pytest.fixture
def ids(built: Any) -> list[str]:
    return [ad_id for ad_id, row in built.catalogue.items() if row["status"] in ("active", None)]


def news(content: Any, count: int, first: int = 0) -> list[Update]:
    return [
        Update(ad_id=f"new-{number}", at=0, bid=1.0, content=content(price=float(number), valid_from=LATER + number))
        for number in range(first, first + count)
    ]


def generations(day: Any) -> list[Path]:
    return sorted(day.overlay.glob("g-*"))


def test_one_process_writes_and_another_may_take_over(day: Any) -> None:
    day.apply()
    with pytest.raises(AdsieveError, match="another process writes this overlay"):
        day.new_writer()
    day.restart()
    day.new_writer().close()


def test_a_directory_that_cannot_be_written_is_an_error_that_names_it(day: Any) -> None:
    day.overlay.write_text("a file")
    with pytest.raises(AdsieveError, match=r"overlay: the overlay cannot be written here: .*; --local or"):
        day.new_writer()


def test_readers_find_nothing_before_the_log_has_been_applied(day: Any, content: Any) -> None:
    day.log.append(news(content, 5))
    assert LiveIndex.open(day.index, day.built.two_tower.schema, day.overlay) is None
    assert day.writer.apply_pending(max_contents=2) == 7
    assert LiveIndex.open(day.index, day.built.two_tower.schema, day.overlay) is None
    day.apply()
    assert day.open().position == day.log.end


def test_states_do_not_wait_for_content_that_came_before(day: Any, ids: list[str], content: Any) -> None:
    live = day.after()
    day.log.append([*news(content, 5), Update(ad_id=ids[0], at=0, takedown=True)])
    day.writer.apply_pending(max_contents=1)
    assert not live.servable(live.lookup(ids[:1])).any()
    assert (day.writer.num_waiting, live.position.seq, live.num_rows - 64) == (4, 1, 1)
    day.apply()
    assert live.position == day.log.end
    assert (live.lookup([f"new-{number}" for number in range(5)]) >= 64).all()


def test_another_process_that_mapped_the_overlay_sees_each_change(day: Any, ids: list[str], content: Any) -> None:
    day.apply()
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from contracts.bundle import open_bundle
        from indexing.index import Index
        from indexing.live import LiveIndex
        index, schema = Index.open(Path(sys.argv[1]), verify=False), open_bundle(Path(sys.argv[2])).schema
        live = LiveIndex.open(index, schema, Path(sys.argv[3]))
        for line in sys.stdin:
            rows = live.lookup(line.split())
            print(rows.tolist(), live.servable(rows).tolist(), live.ids(rows[rows >= 0]), flush=True)
    """)
    paths = [str(path) for path in (day.built.path, day.built.two_tower.path, day.overlay)]
    with subprocess.Popen(
        [sys.executable, "-c", program, *paths],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:

        def ask(*asked: str) -> str:
            reader.stdin.write(" ".join(asked) + "\n")
            reader.stdin.flush()
            return reader.stdout.readline().strip()

        row = day.index.id_table.lookup(ids[:1])[0]
        assert ask(ids[0], "new-0").endswith(f"['{ids[0]}']")
        day.after(*news(content, 1), Update(ad_id=ids[0], at=0, takedown=True))
        assert ask(ids[0], "new-0") == f"[{row}, 64] [False, True] ['{ids[0]}', 'new-0']"
        day.restart()
        day.after(Update(ad_id=ids[0], at=0, takedown=False, content=content()))
        assert ask(ids[0], "new-0") == f"[65, 64] [True, True] ['{ids[0]}', 'new-0']"
        reader.stdin.close()


def test_a_new_writer_goes_on_with_the_overlay_that_is_there(day: Any, ids: list[str], content: Any) -> None:
    live = day.after(*news(content, 3), Update(ad_id=ids[0], at=0, status="paused", content=content()))
    before = generations(day)
    day.restart()
    day.apply()
    assert generations(day) == before
    assert live.num_rows == 68
    day.after(*news(content, 2, first=3))
    assert live.lookup(["new-4", "new-0", ids[0]]).tolist() == [69, 64, 67]
    assert not live.is_retired


@pytest.mark.parametrize("doubt", ["other log", "shorter log", "other boot", "other size", "torn header"])
def test_what_cannot_be_trusted_is_built_anew(
    day: Any, ids: list[str], content: Any, doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [Update(ad_id=ids[0], at=0, takedown=True), *news(content, 1)]
    day.log.append(kept)
    live = day.after(*news(content, 2, first=1))
    before = generations(day)
    day.restart()
    match doubt:
        case "other log":
            shutil.rmtree(day.log.directory)
            UpdateLog(day.log.directory).append(kept)
        case "shorter log":
            segment = next(day.log.directory.glob("*.jsonl"))
            segment.write_bytes(b"".join(segment.read_bytes().splitlines(keepends=True)[:2]))
        case "other boot":
            monkeypatch.setattr(overlay_files, "boot_id", lambda: b"another start")
        case "other size":
            os.truncate(before[0] / "vectors.bin", 100)
        case "torn header":
            os.truncate(before[0] / "header.bin", 40)
    day.apply()
    assert generations(day) != before
    assert len(generations(day)) == 1
    anew = day.open()
    assert anew.servable(anew.lookup(ids[:1])).tolist() == [False]
    assert anew.lookup(["new-0"]).tolist() == [64]
    if doubt in ("other log", "shorter log"):
        assert anew.lookup(["new-1", "new-2"]).tolist() == [-1, -1]
        assert live.is_retired
        assert live.lookup(["new-2"]).tolist() == [66], "a reader of the old one goes on with what it has"


def test_a_log_that_changes_under_a_running_writer_is_followed(day: Any, ids: list[str]) -> None:
    live = day.after(Update(ad_id=ids[0], at=0, takedown=True), Update(ad_id=ids[1], at=0, takedown=True))
    shutil.rmtree(day.log.directory)
    day.apply()
    assert not live.servable(live.lookup(ids[:1])).any(), "without a log what is known stays"
    other = UpdateLog(day.log.directory)
    other.append([Update(ad_id=ids[1], at=0, takedown=True)])
    day.apply()
    assert live.is_retired
    live = day.open()
    assert live.servable(live.lookup(ids[:2])).tolist() == [False, False], "another log does not revive an ad"
    assert live.position == other.end
    day.restart()
    live = day.after(Update(ad_id=ids[0], at=0, bid=2.0))
    assert live.servable(live.lookup(ids[:1])).tolist() == [False], "nor does a writer that takes over"
    for _ in range(2):
        live = day.after(Update(ad_id=ids[0], at=0, takedown=False))
        assert live.servable(live.lookup(ids[:2])).tolist() == [True, False]
        day.restart()


def test_a_log_that_lost_its_end_revives_no_ad(day: Any, ids: list[str], content: Any) -> None:
    day.after(Update(ad_id=ids[2], at=0, bid=1.0))
    segment = next(day.log.directory.glob("*.jsonl"))
    before = segment.stat().st_size
    stopped = [Update(ad_id=ids[0], at=0, takedown=True), Update(ad_id=ids[1], at=0, budget=0.0)]
    day.after(*stopped, *news(content, 1), Update(ad_id="new-0", at=0, takedown=True))
    day.restart()
    os.truncate(segment, before)
    day.apply()
    live = day.after(*news(content, 1))
    assert live.servable(live.lookup([*ids[:2], "new-0"])).tolist() == [False, False, False]
    live = day.after(Update(ad_id="new-0", at=0, takedown=False))
    assert live.servable(live.lookup([*ids[:2], "new-0"])).tolist() == [False, False, True]


def test_a_full_overlay_gives_way_to_a_larger_one_of_the_newest_rows(
    day: Any, ids: list[str], content: Any, rules: Any
) -> None:
    day._writer = day.new_writer(capacity=4)
    live, said = day.after(), []
    steps = [
        *news(content, 2),
        Update(ad_id=ids[0], at=0, content=content(scenario="standard", valid_from=LATER)),
        *[Update(ad_id="new-0", at=0, bid=float(at), content=content(valid_from=2 * LATER + at)) for at in range(9)],
        Update(ad_id="new-0", at=0, takedown=True),
        Update(ad_id=ids[1], at=0, bid=3.0),
        *news(content, 9, first=2),
    ]
    for update in steps:
        current = day.after(update)
        said.append(update)
    assert live.is_retired
    names = [*day.built.catalogue, *(f"new-{number}" for number in range(11))]
    for opened in (current, day.open()):
        assert rules.seen(opened, names) == rules.wanted(rules.expected(day.built.catalogue, said))
    assert current.num_rows - 64 < len(steps)
    rows = day.open().lookup(["new-5", "new-0"])
    assert day.open().ids(rows) == ["new-5", "new-0"]
    day.restart()
    day.apply()
    assert rules.seen(day.open(), names) == rules.wanted(rules.expected(day.built.catalogue, said))


def test_a_full_disk_keeps_content_waiting_and_states_in_effect(
    day: Any, ids: list[str], content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = day.after(*news(content, 1))

    def full(*_: object) -> None:
        raise AdsieveError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(overlay_rows, "append_texts", full)
        day.log.append([*news(content, 2, first=1), Update(ad_id=ids[0], at=0, takedown=True)])
        for _ in range(2):
            with pytest.raises(AdsieveError, match="no space left"):
                day.writer.apply_pending()
        assert not live.servable(live.lookup(ids[:1])).any()
        assert live.lookup(["new-1"]).tolist() == [-1]
    day.apply()
    assert live.lookup(["new-1", "new-2"]).tolist() == [65, 66]
    assert live.position == day.log.end


def test_disk_blocks_are_taken_before_rows_are_written(day: Any, content: Any) -> None:
    live = day.after(*news(content, 1))
    overlay = live._overlay
    file = overlay.directory / "vectors.bin"
    assert file.stat().st_blocks * 512 >= overlay.rows["vectors"][:1].nbytes
    assert file.stat().st_blocks * 512 < overlay.rows["vectors"].nbytes, "the rest of the file takes no room yet"


@pytest.mark.parametrize("killed_after", ["values", "num_rows", "link", "states"])
def test_a_writer_that_dies_between_two_steps_is_made_good(
    day: Any, ids: list[str], content: Any, rules: Any, killed_after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [*news(content, 2), Update(ad_id=ids[0], at=0, content=content(valid_from=LATER))]
    live = day.after(*said)
    more = [
        Update(ad_id=ids[0], at=0, bid=8.0, content=content(valid_from=2 * LATER)),
        Update(ad_id=ids[1], at=0, takedown=True, content=content(valid_from=2 * LATER)),
        Update(ad_id="new-0", at=0, content=content(scenario="standard", valid_from=2 * LATER)),
    ]
    day.log.append(more)
    _die_after(killed_after, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        day.apply()
    monkeypatch.undo()
    for name in ("lookup", "ids"):
        assert len(getattr(live, name)([ids[0]] if name == "lookup" else np.array([0]))) == 1
    day.restart()
    day.apply()
    names = [*day.built.catalogue, "new-0", "new-1"]
    for opened in (live, day.open()):
        assert rules.seen(opened, names) == rules.wanted(rules.expected(day.built.catalogue, said + more))
    assert sorted(day.open()._overlay.rows["is_here"].nonzero()[0].tolist()) == [1, 3, 4]


def _die_after(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"values": "_set", "num_rows": "_link", "link": "_link", "states": "set_states"}[step]
    real, calls = getattr(overlay_rows.RowWriter, name), []

    def dying(self: Any, *arguments: Any) -> None:
        calls.append(name)
        if step in ("values", "num_rows") or (step == "states" and len(calls) < 2):
            if step == "states":
                return real(self, *arguments)
            raise KeyboardInterrupt
        real(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(overlay_rows.RowWriter, name, dying)


def test_a_private_overlay_leaves_nothing_behind(
    day: Any, ids: list[str], content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    parts = day.index, day.built.two_tower, day.built.heavy
    assert private_live_index(*parts, day.log).position is None
    day.log.append([*news(content, 2), Update(ad_id=ids[0], at=0, takedown=True)])
    live = private_live_index(*parts, day.log)
    assert live.position == UpdatePosition(log=day.log.end.log, seq=3)
    rows = live.lookup(["new-1", ids[0]])
    assert live.ids(rows) == ["new-1", ids[0]]
    assert live.servable(rows).tolist() == [True, False]
    assert not list(tmp_path.glob("adsieve-overlay-*"))
