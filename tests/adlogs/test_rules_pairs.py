"""Rules that look back over many rows, compared with plain loops that keep everything."""

import numpy as np
import pyarrow as pa

from adlogs.faults import FaultLog, Place
from adlogs.id_codes import IdCodes, repeats
from adlogs.rules_pairs import NOT_CONTIGUOUS, REPEATED_PAIR, PairCodes, RepeatedRows, RequestOrder


def test_codes_are_the_order_of_first_appearance_in_any_encoding() -> None:
    random = np.random.default_rng(1)
    ids = [None if number == 7 else f"ü-{number}" for number in random.integers(0, 20, 300)]
    codes, seen = IdCodes(), dict[str, int]()
    expected = [-1 if text is None else seen.setdefault(text, len(seen)) for text in ids]
    parts = [pa.array(ids[:100]), pa.array(ids[100:200]).dictionary_encode(), pa.array(ids[200:], pa.large_string())]
    assert np.concatenate([codes.add(part) for part in parts]).tolist() == expected
    assert [codes.text(code) for code in range(len(codes))] == list(seen)


def test_repeats_of_several_keys() -> None:
    random = np.random.default_rng(2)
    keys = random.integers(0, 8, (2, 100))
    seen, expected = set[tuple[int, int]](), []
    for pair in zip(*keys.tolist(), strict=True):
        expected.append(pair in seen)
        seen.add(pair)
    assert repeats(*keys).tolist() == expected


def test_order_of_requests_in_slices_equals_a_plain_loop() -> None:
    random = np.random.default_rng(3)
    runs = [(int(random.integers(-1, 30)), int(random.integers(1, 9))) for _ in range(60)]
    request = np.concatenate([np.full(length, code) for code, length in runs])
    ad = random.integers(-1, 12, len(request))
    again, repeated = plain_order(request, ad)
    for size in (1, 7, 64, 1000):
        order, found = RequestOrder(), dict[str, list[bool]]()
        for at in range(0, len(request), size):
            for finding in order.findings(PairCodes(request[at : at + size], ad[at : at + size])):
                found.setdefault(finding.rule, []).extend(finding.rows.tolist())
        assert found[NOT_CONTIGUOUS] == again
        if size != 1000:  # one slice also sees pairs that other runs of a request hold
            assert all(a <= b for a, b in zip(repeated, found[REPEATED_PAIR], strict=True))
        if size == 1:
            assert found[REPEATED_PAIR] == repeated


def plain_order(request: np.ndarray, ad: np.ndarray) -> tuple[list[bool], list[bool]]:
    """First rows of runs of a request that had a run before; pairs that stood in the same run before."""
    again, repeated, seen, run, last = [], [], set(), set(), -1
    for row, code in enumerate(request.tolist()):
        starts = code >= 0 and code != last
        again.append(starts and code in seen)
        if row and code != request[row - 1]:
            run = set()
        pair = (code, int(ad[row]))
        repeated.append(min(pair) >= 0 and pair in run)
        run.add(pair)
        if code >= 0:
            seen.add(code)
            last = code
    return again, repeated


def test_repeated_rows_are_noted_where_they_stand() -> None:
    faults, rows = FaultLog(), RepeatedRows()
    rows.add(Place("ads", "a", 0, 0), np.array([1, -1, 2]), np.array([5, 5, 5]))
    rows.add(Place("ads", "b", 3, 100), np.array([2, -1, 1]), np.array([6, 5, 5]))
    rows.note(faults, "column", "rule", lambda first, second: [first, second])
    (fault,) = faults.faults
    assert (fault.file, fault.row_group, fault.row, fault.count, fault.example) == ("b", 3, 102, 1, "[1, 5]")
