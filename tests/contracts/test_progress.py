import pytest

from contracts.progress import pace_text, progress, tell


def test_without_a_terminal_one_plain_line_says_how_much_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Encoding requests", total=30, unit="requests") as advance:
        advance(10)
        advance(20, note="loss .5")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Encoding requests: 30 of 30 requests, 0 s, loss .5\n"


def test_the_total_may_be_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Reading", total=None) as advance:
        advance(1_000)
    assert capsys.readouterr().err == "Reading: 1,000 rows, 0 s\n"


def test_what_begins_now_is_announced_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Exporting", total=1, unit="steps") as advance:
        advance(0, note="graphs")
        assert capsys.readouterr().err == "Exporting: 0 of 1 steps, 0 s, graphs\n"
        advance(1, note="compared")
    assert capsys.readouterr().err == "Exporting: 1 of 1 steps, 0 s, compared\n"


def test_a_line_beside_the_progress_is_told_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    tell("warm start from a")
    tell("")
    assert capsys.readouterr() == ("", "warm start from a\n")


def test_what_an_earlier_run_had_done_counts_but_makes_no_pace(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Embedding", total=30, unit="ads", done=10) as advance:
        advance(20)
    assert capsys.readouterr().err == "Embedding: 30 of 30 ads, 0 s\n"


@pytest.mark.parametrize(
    ("amount", "elapsed_s", "remaining", "text"),
    [
        (100, 0.5, 100, ""),
        (0, 5.0, 100, ""),
        (100, 2.0, 100, ", 50 ads/s, 2 s left"),
        (100, 2.0, 10_000, ", 50 ads/s, 3 min left"),
        (100, 2.0, 1_000_000, ", 50 ads/s, 5.6 h left"),
        (100, 2.0, None, ", 50 ads/s"),
        (100, 2.0, 0, ", 50 ads/s"),
        (1, 20.0, 2, ", 40 s left"),
    ],
)
def test_pace_and_time_left(amount: int, elapsed_s: float, remaining: int | None, text: str) -> None:
    assert pace_text(amount, elapsed_s, remaining, "ads") == text
