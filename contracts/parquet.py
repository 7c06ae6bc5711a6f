"""Reading Parquet whose bytes may be damaged: what Arrow says of them becomes a LogError that names where they are."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from contracts.errors import LogError


@contextmanager
def readable(source: str | Path) -> Iterator[None]:
    """Around the reading of ``source`` alone, so that no other fault is taken for damage.

    Raises:
        LogError: The bytes are no Parquet, or do not decode. A file that cannot be opened stays an OSError.
    """
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        reason = " ".join(str(error).split())
        raise LogError(f"{source}: damaged, expected Parquet that `adsieve validate` finds sound: {reason}") from error


def sound_batches(batches: Iterable[pa.RecordBatch], *, source: str | Path) -> Iterator[pa.RecordBatch]:
    """Pass on batches that are read from ``source``, each checked in full: bounds, and text that is UTF-8.

    Raises:
        LogError: As ``readable``.
    """
    remaining = iter(batches)
    while True:
        with readable(source):
            batch = next(remaining, None)
            if batch is not None:
                batch.validate(full=True)
        if batch is None:
            return
        yield batch
