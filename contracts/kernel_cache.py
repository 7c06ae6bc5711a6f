"""Where compiled kernels are kept between processes, and that one process compiles them for all.

CACHE/adsieve/kernels/DIGEST/       of the sources: Numba keeps a function until its own file changes, whatever
                                    becomes of those that it calls
    MODULE_HASH/*.nbi, *.nbc        as Numba keeps them, for as many kinds of processors as compiled here
    whole-*                         empty: all that a processor of this kind needs is here
    lock                            held by who compiles
"""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from contracts.caches import user_caches
from contracts.locks import one_at_a_time

BROUGHT = "ADSIEVE_KERNELS"
"""Names a directory with kernels that an image brings along; it is only read."""
PATIENCE_S = 60.0
"""So long a process waits for another that compiles; then it compiles for itself."""
_LOCK = "lock"


@contextmanager
def kernel_cache() -> Iterator[Path | None]:
    """A directory for the kernels as they are, that can be written to; None for none.

    It is among the user's caches; where these cannot be written to, and kernels were brought along, it is a copy of
    them that lasts as long as this context.
    """
    name = sources_digest()
    brought = Path(os.environ[BROUGHT]) / name if os.environ.get(BROUGHT) else None
    directory = user_caches() / "kernels" / name
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        if brought is not None and not directory.exists():
            _copy(brought, directory)
        directory.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError:
        with _lasting_as_long(brought) as copy:
            yield copy
        return
    yield directory


@contextmanager
def one_compiles(directory: Path) -> Iterator[None]:
    """Have no other process fill the directory meanwhile; those that find it filled need not wait for one another."""
    whole = directory / f"whole-{_kind()}"
    if whole.exists():
        yield
        return
    with one_at_a_time(directory / _LOCK, limit_s=PATIENCE_S):
        is_missing = not whole.exists()
        if is_missing:
            yield
            with suppress(OSError):
                whole.touch()
    if not is_missing:  # another process filled it
        yield


def sources_digest() -> str:
    sources = sorted((Path(__file__).parent / "kernels").glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def _kind() -> str:
    """What compiled code depends on, beside its source."""
    import llvmlite
    import numba
    from llvmlite import binding

    processor = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    versions = f"{sys.implementation.cache_tag} {numba.__version__} {llvmlite.__version__}"
    return hashlib.sha256(f"{versions} {processor}".encode()).hexdigest()[:16]


@contextmanager
def _lasting_as_long(brought: Path | None) -> Iterator[Path | None]:
    with ExitStack() as stack:
        copy = None
        with suppress(OSError):
            if brought is not None and brought.exists():
                made = tempfile.TemporaryDirectory(prefix="adsieve-kernels-", ignore_cleanup_errors=True)
                copy = Path(stack.enter_context(made)) / "kernels"
                _copy(brought, copy)
        yield copy if copy is not None and copy.exists() else None


def _copy(brought: Path, directory: Path) -> None:
    """Copy in one step; nothing comes of it where nothing was brought, or another process was first."""
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".kernels-") as aside, suppress(OSError):
        copy = Path(aside) / "copy"
        shutil.copytree(brought, copy, ignore=shutil.ignore_patterns(_LOCK))
        copy.rename(directory)
