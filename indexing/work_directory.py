"""Where a long job makes an artifact: a hidden directory beside it that outlives a kill, so that the next run goes on.

    .NAME.work/inputs.json    what the job reads; another job's work is not gone on with
    .NAME.work/...            what the job keeps

A lock that ends with its process keeps two jobs from one target. No reader looks at hidden directories.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from contracts.artifact import refuse_existing, write_json
from contracts.errors import AdsieveError, InputError
from indexing.store_files import refuse_inside

SUFFIX = ".work"
INPUTS = "inputs.json"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")


@contextmanager
def work_directory(target: Path, inputs: Mapping[str, Any]) -> Iterator[Path]:
    """Hold the directory in which ``target`` is made.

    It is kept when the process is killed or interrupted, when the disk is full, or at a bug; it goes when the block
    ends well, or when what the job reads turns out to be wrong.

    Args:
        target: Must not exist yet.
        inputs: What the job reads and does, as JSON keeps it. What a job of other inputs left is removed.

    Raises:
        InputError: ``target`` exists and is not an empty directory, is inside of a store, or another process is
            making it now.
        AdsieveError: The disk is full.
    """
    target = Path(target).absolute()
    path = target.parent / f".{target.name}{SUFFIX}"
    refuse_inside(target)
    _refuse_existing(target, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(path, target)
    try:
        refuse_existing(target)
        _begin(path, inputs)
        yield path
        shutil.rmtree(path)
    except (OSError, RuntimeError) as error:
        if not _is_full_disk(error):
            raise
        raise AdsieveError(
            f"{target}: no space left on the disk ({error}); what is done so far is kept in {path}; "
            "make room and run the same command again, it goes on from there"
        ) from error
    except AdsieveError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _is_full_disk(error: OSError | RuntimeError) -> bool:
    """By number; FAISS tells the system's words for it, NumPy how many values it wrote."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NO_SPACE
    text = str(error)
    return any(os.strerror(number) in text for number in NO_SPACE) or _SHORT_WRITE.search(text) is not None


def _refuse_existing(target: Path, path: Path) -> None:
    """Refuse an existing target; what a job left that was killed after its last step goes."""
    try:
        refuse_existing(target)
    except InputError:
        if path.is_dir():
            with suppress(InputError):
                lock = _lock(path, target)
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
        raise


def _lock(path: Path, target: Path) -> int:
    """Create and lock the directory. One that was removed or renamed between the two steps is not the one to hold."""
    while True:
        path.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    return handle
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                f"{target}: another process is making it now; wait for it, or choose another path"
            ) from None
        os.close(handle)


def _begin(path: Path, inputs: Mapping[str, Any]) -> None:
    plain = msgspec.json.decode(msgspec.json.encode(inputs))
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        if msgspec.json.decode((path / INPUTS).read_bytes()) == plain:
            return
    for left in path.iterdir():
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    write_json(path / INPUTS, plain)
