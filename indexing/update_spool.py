"""Updates that were checked, kept on disk until all of them are, so that a file of any length takes little memory."""

import tempfile
from collections.abc import Iterable, Iterator

from contracts.errors import AdsieveError
from indexing.update_record import Update, decode_update, encode_update


class UpdateSpool:
    """Updates in their order, read again as often as wanted; gone with this object.

    Example:
        >>> spool = UpdateSpool()
        >>> spool.extend([Update(ad_id="a", at=0, bid=1.0), Update(ad_id="b", at=0, takedown=True)])
        >>> len(spool), [update.ad_id for update in spool], [update.ad_id for update in spool]
        (2, ['a', 'b'], ['a', 'b'])
    """

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="adsieve-updates-")  # noqa: SIM115 - closed with this object
        self._count = 0

    def extend(self, updates: Iterable[Update]) -> None:
        """Add updates behind those that are here.

        Raises:
            AdsieveError: The disk is full.
        """
        try:
            for update in updates:
                self._file.write(encode_update(update) + b"\n")
                self._count += 1
            self._file.flush()
        except OSError as error:
            way_out = f"{error.strerror}; TMPDIR names another disk"
            raise AdsieveError(f"{self._file.name}: cannot be written, no update was taken: {way_out}") from error

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Update]:
        with open(self._file.name, "rb") as lines:
            for line in lines:
                yield decode_update(line)
