import pytest

from contracts.progress import progress


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
