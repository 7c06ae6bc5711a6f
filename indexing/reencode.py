"""Another heavy ranker over the same ads: the heavy block of an index is made anew, everything else is shared.

The catalogue is read again in one pass. A row belongs to the index where the id table knows its ad and it began at the
moment that the index keeps; so the order of rows stays, and neither the newest row nor the scenario need be found.
Content that came from updates is read from the log.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from contracts.artifact import MANIFEST, READY, FileEntry, file_sha256, publishing, write_json
from contracts.bundle import Bundle, open_bundle
from contracts.encoding import Coverage, EncodedBatch, Encoder
from contracts.errors import LogError, WrongArtifactError
from contracts.progress import Advance, progress
from contracts.records import REQUIRED_COLUMNS, check_columns, open_dataset, plain_text, utc_micros
from contracts.release import IndexManifest
from indexing.arrays import HEADER_BYTES, ArrayWriter
from indexing.build_inputs import Ads
from indexing.catalog import check_features, read_dataset
from indexing.index import Index
from indexing.manifest import index_version, now
from indexing.overlay_content import NewAd, content_table
from indexing.shift import AdProfile, ShiftCounts, ad_profile, shift_warnings
from indexing.store_files import refuse_inside
from indexing.update_log import UpdateLog

HEAVY = "heavy"
BLOCKS = ("heavy-ids.npy", "heavy-floats.npy")
_READ = {name: REQUIRED_COLUMNS["ads"][name] for name in ("ad_id", "valid_from")}
_BATCH = 8192


def reencode_index(*, index: Path, heavy: Path, ads: Ads, out: Path, updates: UpdateLog | None = None) -> IndexManifest:
    """Write ``out``: the index ``index`` with the heavy block of another bundle. Its other files are linked, or copied.

    Args:
        index: Finished.
        heavy: Bundle whose schema encodes the ads.
        ads: The dataset that the index was built of, of one place or several; later rows do not matter.
        out: Directory to create.
        updates: Log of updates of the store, needed where content was merged from it.

    Raises:
        LogError: The dataset lacks columns, ads of the index, or holds values that the bundle cannot take.
        ArtifactError: The index or the bundle is truncated or altered.
        WrongArtifactError: They are not of one scenario, or the bundle lacks tasks.
        InputError: ``out`` exists, or is inside of a store.
    """
    refuse_inside(out)
    source, bundle = Index.open(index), open_bundle(heavy, kind="heavy")
    _check_pair(source, bundle)
    dataset = open_dataset(*([ads] if isinstance(ads, str | Path) else ads))
    encoder = Encoder(bundle.schema, "ad")
    check_columns(
        dataset.schema, {name: REQUIRED_COLUMNS["ads"][name] for name in ("ad_id", "valid_from")}, source=index
    )
    check_features(dataset, encoder.columns, model=bundle.manifest.version)
    with publishing(out) as aside:
        _share(source, aside)
        profile = ad_profile(bundle)
        block = _HeavyBlock(aside, source, encoder, profile)
        try:
            with progress("Encoding ads", total=dataset.count_rows(), unit="rows") as advance:
                block.fill_from(_of_dataset(dataset, encoder.columns), advance, first_counts=False)
            with progress("Encoding updates", total=None) as advance:
                block.fill_from(_of_updates(updates, source, encoder.columns), advance, first_counts=True)
            block.check_complete(updates)
        finally:
            block.close()
        manifest = _manifest(aside, source, bundle, block, profile)
        write_json(aside / MANIFEST, manifest)
    return manifest


def _check_pair(source: Index, bundle: Bundle) -> None:
    if bundle.manifest.scenario not in (None, source.scenario):
        raise WrongArtifactError(
            f"{bundle.path}: heavy bundle of scenario {bundle.manifest.scenario!r}, "
            f"expected none or {source.scenario!r}, that of {source.path}"
        )
    lacking = [task for task in source.manifest.tasks if task not in bundle.manifest.tasks]
    if lacking:
        raise WrongArtifactError(f"{bundle.path}: lacks the tasks {lacking} of {source.path}")


def _share(source: Index, target: Path) -> None:
    """Link all files but the heavy block and what names the index; copy them where links are not to be had."""
    for path in sorted(source.path.rglob("*")):
        copy = target / path.relative_to(source.path)
        if path.is_dir():
            copy.mkdir()
        elif path.name not in (*BLOCKS, MANIFEST, READY):
            try:
                os.link(path, copy)
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, copy)


Rows = Iterator[tuple[pa.Table | pa.RecordBatch, np.ndarray, str]]
"""Ads with their columns, ``valid_from`` in microseconds, and the file that they come from."""


def _of_dataset(dataset: ds.Dataset, columns: Sequence[str]) -> Rows:
    for file, batch in read_dataset(dataset, sorted({"ad_id", "valid_from", *columns}), _BATCH):
        yield batch, utc_micros(batch["valid_from"], column="valid_from", source=file), file


def _of_updates(log: UpdateLog | None, source: Index, columns: Sequence[str]) -> Rows:
    """Content of the scenario in the log up to where the index merged it."""
    position = source.manifest.updates
    if log is None or position is None:
        return
    contents = (
        NewAd(ad_id=update.ad_id, seq=update.seq, content=update.content)
        for update in log.read()
        if update.content is not None and update.content.scenario == source.scenario
    )
    while ads := list(islice(contents, _BATCH)):
        table = content_table(ads, [name for name in columns if name != "ad_id"])
        yield table, np.array([ad.content.valid_from for ad in ads], np.int64), "updates"


@dataclass
class _Counted:
    """What was counted of the ads that were encoded."""

    coverage: Coverage = field(default_factory=Coverage)
    shift: ShiftCounts | None = None
    faults: dict[str, int] = field(default_factory=dict)
    num_invalid: int = 0

    def add(self, batch: EncodedBatch, profile: AdProfile | None) -> None:
        self.coverage = self.coverage.merge(batch.coverage)
        self.num_invalid += int(batch.invalid.sum())
        for fault in batch.faults:
            rule = f"{HEAVY} {fault.column}: {fault.rule}"
            self.faults[rule] = self.faults.get(rule, 0) + fault.count
        if profile is not None:
            counts = profile.count(batch.encoded, ~batch.invalid)
            self.shift = counts if self.shift is None else self.shift.merge(counts)


class _HeavyBlock:
    """The two files of the block, filled at the rows of the index in whatever order its ads come.

    Neighbouring rows are written in one piece; nothing is kept in memory but a bit an ad.
    """

    def __init__(self, directory: Path, source: Index, encoder: Encoder, profile: AdProfile | None) -> None:
        self._source, self._encoder, self._profile = source, encoder, profile
        widths = (encoder.layout.num_ids, encoder.layout.num_floats)
        self._files: list[tuple[int, int]] = []
        for name, width, dtype in zip(BLOCKS, widths, (np.int32, np.float32), strict=True):
            with ArrayWriter(directory / name, dtype, (width,)) as writer:
                writer.num_rows = len(source)
            self._files.append((os.open(directory / name, os.O_WRONLY), width * np.dtype(dtype).itemsize))
        self._found = np.zeros(-(-len(source) // 8), np.uint8)
        self._num_found = 0
        self.counted = _Counted()

    def fill_from(self, ads: Rows, advance: Advance, *, first_counts: bool) -> None:
        """Encode those of the ads that are the index's.

        Args:
            first_counts: Whether an ad that comes again is passed over; else it is refused.
        """
        for columns, valid_from, file in ads:
            advance(len(columns))
            ids = plain_text(columns["ad_id"])
            rows = self._source.id_table.lookup(ids.to_pylist())
            mine = np.flatnonzero(rows >= 0)
            mine = mine[self._source.valid_from[rows[mine]] == valid_from[mine]]
            if first_counts:
                mine = mine[~self._is_found(rows[mine])]
                mine = mine[np.unique(rows[mine], return_index=True)[1]]
            self._refuse_again(rows[mine], file)
            if len(mine):
                self._encode(columns.take(pa.array(mine)), rows[mine].astype(np.int64), file)

    def check_complete(self, log: UpdateLog | None) -> None:
        """Refuse where an ad of the index did not come, or cannot be encoded."""
        manifest, lacking = self._source.manifest, len(self._source) - self._num_found
        if lacking:
            bits = np.unpackbits(self._found, count=len(self._source), bitorder="little")
            some = self._source.id_table.ids(np.flatnonzero(bits == 0)[:5])
            of_log, why = "", ""
            if manifest.updates is not None and log is None:
                of_log = ", and the store whose updates it merged,"
            elif manifest.updates is not None and log is not None and _was_pruned(log):
                why = "they came from updates that `prune` has since dropped; "
            raise LogError(
                f"{self._source.path}: {lacking:,} of its {len(self._source):,} ads are not in the dataset with the "
                f"valid_from that the index keeps, such as {some}; {why}give the dataset{of_log} that it was built of, "
                "or run `adsieve index build` with the heavy bundle"
            )
        if self.counted.num_invalid:
            raise LogError(
                f"{self._source.path}: {self.counted.num_invalid:,} of its ads hold values that the heavy bundle "
                f"cannot take: {self.counted.faults}; run `adsieve index build` with it, which leaves them out"
            )

    def close(self) -> None:
        for handle, _ in self._files:
            os.close(handle)

    def _is_found(self, rows: np.ndarray) -> np.ndarray:
        return (self._found[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(bool)

    def _refuse_again(self, rows: np.ndarray, file: str) -> None:
        distinct, counts = np.unique(rows, return_counts=True)
        again = np.union1d(distinct[counts > 1], distinct[self._is_found(distinct)])
        if len(again):
            raise LogError(
                f"{file}: ad {self._source.id_table.ids(again[:1])[0]!r} has a second row with the valid_from that "
                "the index keeps; keep one of each"
            )

    def _encode(self, ads: pa.Table | pa.RecordBatch, rows: np.ndarray, file: str) -> None:
        table = ads if isinstance(ads, pa.Table) else pa.Table.from_batches([ads])
        batch = self._encoder.encode(table, num_rows=len(rows), invalid="mark", source=file)
        self.counted.add(batch, self._profile)
        order = np.argsort(rows)
        for (handle, row_bytes), values in zip(self._files, (batch.encoded.ids, batch.encoded.floats), strict=True):
            ordered = np.ascontiguousarray(values[order])
            for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows[order]) != 1) + 1):
                _write_at(handle, ordered[run[0] : run[-1] + 1], HEADER_BYTES + int(rows[order[run[0]]]) * row_bytes)
        np.bitwise_or.at(self._found, rows >> 3, (1 << (rows & 7)).astype(np.uint8))
        self._num_found += len(rows)


def _was_pruned(log: UpdateLog) -> bool:
    """Whether content that indexes had merged was dropped from the log."""
    manifest = log.manifest()
    return manifest is not None and manifest.floor > 0


def _write_at(handle: int, values: np.ndarray, offset: int) -> None:
    data = values.reshape(-1).view(np.uint8).data
    while len(data):
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written


def _manifest(
    directory: Path, source: Index, bundle: Bundle, block: _HeavyBlock, profile: AdProfile | None
) -> IndexManifest:
    made = source.manifest
    files = {name: entry for name, entry in made.files.items() if name not in BLOCKS}
    for name in BLOCKS:
        path = directory / name
        files[name] = FileEntry(sha256=file_sha256(path), bytes=path.stat().st_size)
    identity = {"two_tower": made.two_tower, "heavy": bundle.manifest.version, "watermark": made.watermark}
    counted = block.counted
    shift = {name: features for name, features in made.shift.items() if name != HEAVY}
    if profile is not None and counted.shift is not None:
        shift[HEAVY] = profile.report(counted.shift, counted.coverage)
    return msgspec.structs.replace(
        made,
        version=index_version(made.scenario, identity, files, made.updates),
        heavy=bundle.manifest.version,
        heavy_ad_fingerprint=bundle.schema.side_fingerprint("ad"),
        coverage={**made.coverage, HEAVY: asdict(counted.coverage)},
        shift=shift,
        warnings=[line for name, features in shift.items() for line in shift_warnings(name, features)],
        reencoded_from=made.version,
        files=dict(sorted(files.items())),
        created_at=now(),
    )
