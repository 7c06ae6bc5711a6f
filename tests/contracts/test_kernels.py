"""Each compiled kernel gives what its reference gives: NumPy, a dict, or a loop over values."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contracts import compiled, dense
from contracts.hashing import hash_ids
from contracts.probability import sigmoid
from contracts.utility import best
from indexing import id_keys
from indexing.id_keys import text_keys
from indexing.id_table import IdTable
from indexing.id_texts import ChosenTexts, IdTexts
from service import candidates
from service.pools import Reason, Resolved
from towers.serving import score

pytest.importorskip("numba")

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=70)
LONG_TEXT = st.builds(lambda text, times: text * times, ANY_TEXT, st.integers(0, 4))
NEAR = ["", "a", "ab", "a" * 7, "a" * 8, "a" * 15, "a" * 16, "a" * 17, "a" * 31, "a" * 32, "a" * 64, "a" * 65, "ä" * 8]
texts = st.lists(ANY_TEXT | LONG_TEXT | st.sampled_from(NEAR), max_size=40)


@contextmanager
def in_numpy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_loaded", None)
        yield


@settings(max_examples=100, deadline=None)
@given(texts, st.integers(4, 2**31 - 1))
@example(NEAR, 1000)
@example(["a\0b"], 10)
@example([], 10)
def test_ids_of_texts_are_those_of_the_plain_hash(kernels: ModuleType, given_texts: list[str], buckets: int) -> None:
    half = len(given_texts) // 2
    data = np.frombuffer("\0".join(given_texts).encode() + kernels.TAIL, np.uint8)
    fields = np.array([[half, 3, buckets], [len(given_texts) - half, 3 + half, 17]], np.int64)
    ids = np.full(len(given_texts) + 4, -1, np.int32)
    done = kernels.hash_fields(data, fields, ids)
    if any("\0" in text for text in given_texts) or not given_texts:
        assert not done
        return
    wanted = [*hash_ids(given_texts[:half], buckets).tolist(), *hash_ids(given_texts[half:], 17).tolist()]
    assert done
    assert ids.tolist() == [-1, -1, -1, *wanted, -1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(-50, 400), max_size=8), max_size=3), st.lists(st.integers(0, 300), max_size=6))
def test_buckets_of_ages_are_those_of_a_sorted_search(
    kernels: ModuleType, ages: list[list[int]], edges: list[int]
) -> None:
    now_us, edges_us = 1_000_000, np.array(sorted(edges), np.int64) * 1000
    fields, place = [], 1
    for field in ages:
        fields.append([len(field), place, 0, len(edges_us)])
        place += len(field)
    ids = np.full(place + 1, -1, np.int32)
    millis = np.array([now_us // 1000 - age for field in ages for age in field], np.int64)
    done = kernels.age_fields(millis, np.array(fields, np.int64).reshape(-1, 4), edges_us, now_us, 0, 2000, ids)
    assert done == all(field == sorted(field) and min(field, default=0) >= 0 for field in ages)
    if done:
        flat = np.array([age * 1000 for field in ages for age in field])
        assert ids.tolist() == [-1, *(np.searchsorted(edges_us, flat, side="right") + 3).tolist(), -1]


def test_a_moment_out_of_range_has_no_age(kernels: ModuleType) -> None:
    field, edges, ids = np.array([[1, 0, 0, 1]]), np.array([5]), np.zeros(1, np.int32)
    for milli, is_told in ((-10, True), (-11, False), (20, True), (21, False), (-(2**63), False)):
        assert kernels.age_fields(np.array([milli]), field, edges, 30_000, -10, 20, ids) == is_told


@settings(max_examples=60, deadline=None)
@given(st.data(), texts, st.sampled_from([1, 3, 2**64]))
def test_ids_are_found_as_in_a_dict(kernels: ModuleType, data: st.DataObject, given_ids: list[str], few: int) -> None:
    ids = list(dict.fromkeys(given_ids))
    asked = data.draw(st.lists(st.sampled_from([*ids, "\ud800", ""]) | ANY_TEXT, max_size=40))
    true_hashes = id_keys.hashes
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        if few < 2**64:
            patch.setattr(id_keys, "hashes", lambda keys: true_hashes(keys) % np.uint64(few) << np.uint64(44))
        table = IdTable.build(ids, Path(directory) / "ids")
        rows = {ad_id: row for row, ad_id in enumerate(ids)}
        assert table.lookup(asked).tolist() == [rows.get(ad_id, -1) for ad_id in asked]
        with in_numpy():
            assert table.lookup(asked).tolist() == [rows.get(ad_id, -1) for ad_id in asked]


def test_full_buckets_overflow_into_others(kernels: ModuleType, tmp_path: Path) -> None:
    ids = [f"ad-{number}" for number in range(30_000)]
    table = IdTable.build(ids, tmp_path / "ids")
    assert (np.asarray(table._tags)[:, -1] != 0).any()
    assert table.lookup(ids[::-1]).tolist() == list(range(30_000))[::-1]
    assert (table.lookup([f"ad-{number}" for number in range(30_000, 60_000)]) == -1).all()


@settings(max_examples=100, deadline=None)
@given(texts)
@example(["a\0", "a\0", "b"])
@example(["\ud800"])
def test_keys_are_the_same_bits_and_tell_repetitions(kernels: ModuleType, ids: list[str]) -> None:
    keys = text_keys(ids)
    with in_numpy():
        plain = text_keys(ids)
        np.testing.assert_array_equal(keys.heads, plain.heads)
        np.testing.assert_array_equal(keys.hashes, plain.hashes)
        assert [keys.text(at) for at in range(len(ids))] == [plain.text(at) for at in range(len(ids))]
        assert keys.has_long == plain.has_long
        assert id_keys.may_repeat(plain) == (len(set(ids)) < len(ids))
    assert id_keys.may_repeat(keys) == (len(set(ids)) < len(ids))


@pytest.mark.parametrize(("dim", "heads"), [(1, 1), (31, 2), (32, 2), (64, 1), (70, 3)])
def test_scores_are_those_of_matrix_products(kernels: ModuleType, dim: int, heads: int) -> None:
    rng = np.random.default_rng(dim)
    vectors = rng.normal(size=(200, dim * heads)).astype(np.float16)
    vectors[3], vectors[4, 0] = np.float16(6e-8), np.float16(65504)  # subnormal, largest
    bias, query = rng.normal(size=(200, heads)).astype(np.float32), rng.normal(size=(heads, dim + 2))
    rows = rng.integers(-1, 200, 77).astype(np.int32)
    logits = np.full((77, heads), np.nan, np.float32)
    kernels.score_half(vectors.view(np.uint16), bias, rows, query.astype(np.float32), logits)
    assert np.isnan(logits[rows < 0]).all()
    own, asked = rows[rows >= 0], query.astype(np.float32).astype(np.float64)
    exact = np.einsum("chd,hd->ch", vectors[own].reshape(-1, heads, dim).astype(np.float64), asked[:, :dim])
    exact += bias[own] * asked[:, dim] + asked[:, dim + 1]
    size = np.einsum("chd,hd->ch", np.abs(vectors[own].astype(np.float64)).reshape(-1, heads, dim), abs(asked[:, :dim]))
    assert (np.abs(logits[rows >= 0] - exact) <= 1e-6 * (size + 10)).all()
    gathered = score(query.astype(np.float32), vectors[own], bias[own])
    np.testing.assert_array_equal(gathered, logits[rows >= 0])  # an ad scores the same wherever its row lies


LOGITS = st.lists(
    st.tuples(*(st.floats(width=32) | st.sampled_from([-710.0, -709.75, 800.0, -0.0]),) * 2), min_size=1, max_size=20
)


@pytest.mark.filterwarnings("error")  # no exponential may overflow
@settings(max_examples=200, deadline=None)
@given(LOGITS, st.integers(0, 2**32))
def test_probabilities_are_the_bits_of_the_formula(kernels: ModuleType, given_logits: list, seed: int) -> None:
    rng, logits = np.random.default_rng(seed), np.array(given_logits, np.float32)
    head_of, codes = np.array([1, 2, 0]), rng.integers(0, 3, len(logits))
    paid = np.empty(len(logits))
    kernels.paid_exponents(logits, head_of, codes, paid)
    expected = [sigmoid(np.array([*logits[place], np.inf]))[head_of[code]] for place, code in enumerate(codes)]
    np.testing.assert_array_equal(1 / (1 + np.exp(paid)), expected)
    bids = rng.random(len(logits))
    utilities = np.exp(paid)
    kernels.weigh(utilities, bids)
    np.testing.assert_array_equal(utilities, bids * np.array(expected))
    places = rng.integers(0, len(logits), 7)
    columns = np.empty((2, 7))
    assert kernels.exponents_at(logits, places, columns) == bool(not np.isnan(logits[places]).any())
    np.testing.assert_array_equal(1 / (1 + np.exp(columns)), sigmoid(logits[places]).T)


UTILITIES = st.lists(st.floats(0, 3), max_size=60) | st.lists(st.sampled_from([0.0, 1.0, 2.5]), max_size=60)


@settings(max_examples=300, deadline=None)
@given(UTILITIES, st.integers(0, 70))
@example([1.0, float("nan"), 2.0], 2)
@example([float(number) for number in range(1000)], 100)
@example([0.0, -0.0, float("-inf"), float("-inf")], 3)
def test_the_best_are_those_of_a_stable_sort(kernels: ModuleType, given_utilities: list[float], k: int) -> None:
    utilities = np.array(given_utilities, np.float64)
    places, values = best(utilities, k)
    np.testing.assert_array_equal(values, utilities[places])
    if np.isnan(utilities).any():
        with in_numpy():
            np.testing.assert_array_equal(places, best(utilities, k)[0])
        return
    assert places.tolist() == sorted(range(len(utilities)), key=lambda place: (-utilities[place], place))[:k]


@pytest.mark.parametrize("order", ["rising", "falling", "organ pipe", "equal", "two values", "random"])
def test_the_best_of_many_are_found_whatever_their_order(kernels: ModuleType, order: str) -> None:
    rising, rng = np.arange(5000.0), np.random.default_rng(1)
    utilities = {
        "rising": rising,
        "falling": rising[::-1].copy(),
        "organ pipe": np.minimum(rising, rising[::-1]),
        "equal": np.ones(5000),
        "two values": rng.integers(0, 2, 5000).astype(float),
        "random": rng.random(5000),
    }[order]
    for k in (1, 100, 4999, 5000):
        places, values = np.zeros(k, np.int64), np.zeros(k)
        assert kernels.best_of(utilities, places, values)
        assert places.tolist() == np.argsort(-utilities, kind="stable")[:k].tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(Reason), max_size=40))
def test_what_is_dropped_is_told_by_reason(kernels: ModuleType, reasons: list[Reason]) -> None:
    ids = [f"ad-{place}" for place in range(len(reasons))]
    expected: dict[str, list[str]] = {reason.name.lower(): [] for reason in Reason if reason}
    for ad_id, reason in zip(ids, reasons, strict=True):
        if reason:
            expected[reason.name.lower()].append(ad_id)
    resolved = Resolved(pools=[], reasons=np.array(reasons, np.int8))
    assert msgspec.structs.asdict(resolved.dropped(ids)) == expected
    assert msgspec.structs.asdict(resolved.dropped(IdTexts(text_keys(ids)))) == expected
    with in_numpy():
        assert msgspec.structs.asdict(resolved.dropped(ids)) == expected


PLAIN = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7F, exclude_characters='"\\'), max_size=40)


@settings(max_examples=100, deadline=None)
@given(st.lists(PLAIN, min_size=1, max_size=20), st.lists(st.integers(0, 2**32), max_size=30))
def test_ids_of_an_answer_are_listed_as_json(kernels: ModuleType, ids: list[str], drawn: list[int]) -> None:
    places = np.array([number % len(ids) for number in drawn], np.int64)
    chosen = ChosenTexts(IdTexts(text_keys(ids)), places)
    expected = [ids[place] for place in places.tolist()]
    assert chosen.json() == msgspec.json.encode(expected)
    assert chosen == expected
    assert [*chosen] == expected
    assert len(chosen) == len(expected)
    with in_numpy():
        assert chosen.json() == msgspec.json.encode(expected)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30), st.booleans(), st.booleans())
def test_candidates_are_sifted_and_collected_as_in_numpy(
    kernels: ModuleType, seed: int, count: int, has_states: bool, valid: bool
) -> None:
    rng = np.random.default_rng(seed)
    owners, rows = rng.integers(-1, 2, count).astype(np.int16), rng.integers(-1, 9, count).astype(np.int32)
    reasons = rng.integers(0, 2, count).astype(np.int8)
    states = rng.integers(0, 2, 9 if has_states else 0).astype(np.uint8)
    own_bids = rng.choice([np.nan, 1.5] if valid else [np.nan, 1.5, -1.0, np.inf], 9).astype(np.float32)
    bids = rng.choice([np.nan, 2.0] if valid else [np.nan, 2.0, -2.0, np.inf], count)
    own_codes, codes = rng.integers(-1, 2, 9).astype(np.int8), np.array([5, 6, 7])
    found = []
    for sift, collect in ((kernels.sift, kernels.collect), (candidates.sifted, candidates.collected)):
        marked, filled = reasons.copy(), bids.copy()
        invalid = sift(1, owners, rows, marked, 0, 4, states, 1, own_bids, filled)
        room = np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count), np.zeros(count, np.int64)
        kept = collect(1, owners, marked, 0, rows, filled, own_codes, codes, *room)
        found.append([bool(invalid), marked, filled, kept, *(column[:kept] for column in room)])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 30), st.booleans(), st.sampled_from([-1, 0, 2]), st.booleans())
def test_one_pass_settles_what_sifting_and_collecting_do(
    kernels: ModuleType, seed: int, count: int, has_states: bool, unknown: int, usual: bool
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-1, 9, count).astype(np.int32)
    reasons = rng.choice([0, 0, 0, 1] if seed % 2 else [0], count).astype(np.int8)
    states = rng.integers(0, 2, 9 if has_states else 0).astype(np.uint8)
    own_bids = np.where(rng.random(9) < (0.0 if usual else 0.1), np.nan, 1.5).astype(np.float32)
    bids = rng.choice([np.nan, 2.0, 0.0] if usual else [np.nan, 2.0, 0.0, -2.0, np.inf], count)
    bids = np.full(count, np.nan) if seed % 3 == 0 else bids
    own_codes, codes = rng.integers(-1, 2, 9).astype(np.int8), np.array([5, 6, 7])

    def room() -> tuple[np.ndarray, ...]:
        return np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count), np.zeros(count, np.int64)

    marked, one_by_one, filled, columns = np.full(count, 9, np.int8), reasons.copy(), bids.copy(), room()
    given_reasons, given_bids = reasons, bids
    if usual:  # none of either is the same as all of them
        given_reasons = reasons if reasons.any() else np.zeros(0, np.int8)
        given_bids = np.zeros(0) if np.isnan(bids).all() else bids
    given = rows, given_reasons, 0, unknown, 4, states, 1, own_bids, given_bids, own_codes, codes
    found = kernels.settle(*given, marked, *columns)
    if (unknown < 0 or unknown == 0) and ((reasons == 0) & (rows < 0) & ((unknown < 0) | np.isnan(bids))).any():
        assert found == -1
        return
    one_by_one[(reasons == 0) & (rows < 0)] = unknown
    owners = np.zeros(count, np.int16)
    invalid = candidates.sifted(0, owners, rows, one_by_one, 0, 4, states, 1, own_bids, filled)
    if invalid or np.isnan(filled[one_by_one == 0]).any():
        assert found == -1
        return
    expected = room()
    assert found == candidates.collected(0, owners, one_by_one, 0, rows, filled, own_codes, codes, *expected)
    np.testing.assert_array_equal(marked, one_by_one)
    for ours, theirs in zip(columns, expected, strict=True):
        np.testing.assert_array_equal(ours[:found], theirs[:found])


DENSE = st.one_of(st.floats(), st.floats(-1e6, 1e6))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(DENSE, st.booleans(), st.floats(-5, 5), st.sampled_from([1e-30, 0.5, 3.0])), max_size=9))
def test_dense_features_are_scaled_as_in_numpy(kernels: ModuleType, given_features: list) -> None:
    values, is_log, mean, std = (
        (np.array(column) for column in zip(*given_features, strict=True)) if given_features else (*(np.zeros(0),) * 4,)
    )
    logs, places = np.log1p(np.abs(values)), np.arange(len(values))[::-1].copy()
    found = []
    for scale in (kernels.scale_dense, dense.scaled):
        floats = np.full(len(values), -7.0, np.float32)
        found.append((bool(scale(values, logs, is_log.astype(bool), mean, std, places, floats)), floats))
    assert found[0][0] == found[1][0]
    if found[0][0]:
        np.testing.assert_array_equal(found[0][1], found[1][1])


def test_kernels_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with in_numpy():
        monkeypatch.setenv("ADSIEVE_COMPILED", "0")
        assert not compiled.prepare()
        assert compiled.kernels() is None


def test_where_compiled_code_is_damaged_it_is_made_anew(
    kernels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    numba = pytest.importorskip("numba")
    seen = []

    def load(name: str) -> ModuleType:
        seen.append(numba.config.CACHE_DIR)
        if seen[-1]:
            raise EOFError("Ran out of input")
        return kernels

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(compiled.importlib, "import_module", load)
    with in_numpy():
        assert compiled.prepare()
    (directory,) = [path for path in seen if path]
    assert seen == [directory, ""]
    assert not Path(directory).exists()
    assert f"kept in {directory} are of no use" in caplog.text

    seen.clear()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # given by the user: nothing is removed
    with in_numpy():
        assert compiled.prepare()
    assert seen == [str(tmp_path), ""]
    assert tmp_path.exists()
    assert str(tmp_path) == numba.config.CACHE_DIR


def test_where_numba_is_told_not_to_compile_numpy_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with in_numpy():
        assert not compiled.prepare()
    assert "NUMBA_DISABLE_JIT" in caplog.text
