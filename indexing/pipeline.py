"""From a catalogue to its embedded ads, in order: one thread reads, several embed, the caller writes.

A batch is encoded, checked and stored by one thread; its pass through the pin tower is cut into pieces that all towers
share, so that no core waits while there is a piece left, the last batch included. Arrow, NumPy and the engines release
the GIL.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from indexing.catalog import Catalog
from indexing.embed import AdEmbedder, EmbeddedBatch
from indexing.precision import num_to_check

BATCHES_AHEAD = 1
"""Batches that are read beside those in work: while a thread ends one, the next one is there."""

CALLS_AHEAD = 1
"""Calls of the tower beside those in work: one that is ready waits in the engine, so that no core is idle between the
end of a call and the look-up of the next."""


def embed_batches(
    catalog: Catalog, embedder: AdEmbedder, columns: Sequence[str], batch_size: int, skip_rows: int = 0
) -> Iterator[EmbeddedBatch]:
    """Embed the catalogue's ads in their order.

    The result depends neither on the number of threads nor on which of them is faster. An error in a batch is raised
    after the batches before it were given out; no thread goes on when this ends, by whatever cause.

    Args:
        catalog: Whose ads.
        embedder: Embeds a batch; called from ``embedder.threads`` threads at once.
        columns: Raw columns to read, those of ``embedder.columns`` among them.
        batch_size: Ads of a batch, at most.
        skip_rows: Ads at the beginning that are left out: the sum of ``num_read`` over batches that were kept before.

    Raises:
        LogError: A column has a wrong type, or a value is unknown.
    """
    pending: deque[Future[EmbeddedBatch]] = deque()
    position = skip_rows
    towers = ThreadPoolExecutor(embedder.threads + CALLS_AHEAD, thread_name_prefix="embed-tower")
    pool = ThreadPoolExecutor(embedder.threads, thread_name_prefix="embed")
    try:
        for table, file in catalog.batches(columns, batch_size, skip_rows):
            check = num_to_check(position)
            position += len(table)
            pending.append(pool.submit(embedder.embed, table, source=file, check=check, spread=towers.map))
            if len(pending) >= embedder.threads + BATCHES_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        towers.shutdown(wait=True)
