"""A log of updates in effect over an index for one process, which leaves no file: for commands that rank once."""

from pathlib import Path
from tempfile import TemporaryDirectory

from contracts.bundle import Bundle
from indexing.index import Index
from indexing.live import LiveIndex
from indexing.overlay_writer import OverlayWriter
from indexing.update_log import UpdateLog


def private_live_index(index: Index, two_tower: Bundle, heavy: Bundle | None, log: UpdateLog) -> LiveIndex:
    """An index with a log in effect as it is now, for one process and no longer than it lives.

    Its files are gone at once; what is mapped stays. The arguments and errors are those of :class:`OverlayWriter`.
    """
    if log.end is None:
        return LiveIndex(index, two_tower.schema)
    with TemporaryDirectory(prefix="adsieve-overlay-") as directory:
        writer = OverlayWriter(index, two_tower, heavy, log, Path(directory))
        try:
            while writer.apply_pending():
                pass
        finally:
            writer.close()
        live = LiveIndex.open(index, two_tower.schema, Path(directory))
    return live if live is not None else LiveIndex(index, two_tower.schema)
