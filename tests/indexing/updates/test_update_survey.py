"""The survey of a log equals a reading of all of it, whatever was noted before and whatever happened since."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexing import update_log, update_survey
from indexing.compaction import compact
from indexing.update_log import UpdateLog
from indexing.update_record import Content, Update
from indexing.update_scan import SegmentScan
from indexing.update_survey import SURVEYED, brought, survey


def content(number: int) -> Content:
    return Content(scenario="s", valid_from=number, features={"text": 'a "content":{} of its own'})


def lot(count: int, *, every: int = 0) -> list[Update]:
    return [
        Update(ad_id=f"ad-{number}", at=0, bid=1.0, content=content(number) if every and number % every == 0 else None)
        for number in range(count)
    ]


def read_whole(directory: Path) -> tuple[int, dict[str, int]]:
    """The reference: damaged lines, and the ads that the log brings, with the latest time of each."""
    reader = UpdateLog(directory)
    ads = [(one.content.valid_from, one.ad_id) for one in reader.read() if one.content is not None]
    return reader.damaged, {ad_id: valid_from for valid_from, ad_id in sorted(ads)}


def surveyed(directory: Path) -> tuple[int, dict[str, int]]:
    found = survey(directory)
    return found.damaged, brought(found, (f"ad-{number}" for number in range(40)))


@settings(max_examples=30, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["append", "damage", "cut", "compact", "forget", "survey"]),
            st.integers(1, 9),
            st.integers(0, 3),
        ),
        max_size=12,
    )
)
def test_a_survey_tells_what_a_reading_of_the_whole_log_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    log = UpdateLog(tmp_path_factory.mktemp("log"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_log, "SEGMENT_BYTES", 400)
        for step, count, every in steps:
            paths = sorted(log.directory.glob("*.jsonl"))
            match step:
                case "append":
                    log.append(lot(count, every=every))
                case "damage" if paths:
                    data = paths[count % len(paths)].read_bytes()
                    paths[count % len(paths)].write_bytes(data.replace(b'"at":0', b'"at":7', 1))
                case "cut" if paths:
                    paths[-1].write_bytes(paths[-1].read_bytes()[: -10 * count])
                case "compact" if UpdateLog(log.directory).end is not None and survey(log.directory).damaged == 0:
                    compact(log, [log.end])
                case "forget":
                    (log.directory / SURVEYED).unlink(missing_ok=True)
            assert surveyed(log.directory) == read_whole(log.directory)


def test_only_what_is_new_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, decoded = UpdateLog(tmp_path), []

    def counted(path: Path, offset: int, seq: int) -> SegmentScan:
        decoded.append(path.stat().st_size - offset)
        return SegmentScan(path, offset, seq)

    monkeypatch.setattr(update_survey, "SegmentScan", counted)
    log.append(lot(1000))
    size = sum(path.stat().st_size for path in tmp_path.glob("*.jsonl"))
    survey(tmp_path)
    survey(tmp_path)
    log.append(lot(1))
    survey(tmp_path)
    assert decoded[0] == size
    assert len(decoded) == 2
    assert decoded[1] < 100


def test_a_log_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert survey(tmp_path / "none").damaged == 0
    assert not (tmp_path / "none").exists()
