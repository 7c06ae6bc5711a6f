"""Whether compiled kernels serve in this process: asked for once, before anything is timed or served.

Numba is optional: where it is not installed, or cannot work on this machine, the references in NumPy serve.
"""

import hashlib
import importlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from types import ModuleType

log = logging.getLogger(__name__)

_SWITCH = "ADSIEVE_COMPILED"
_loaded: ModuleType | None = None


def kernels() -> ModuleType | None:
    """``contracts.kernels``, once it was prepared here; None is for NumPy."""
    return _loaded


def prepare() -> bool:
    """Load the kernels, which compiles them where no earlier process kept them; returns whether they serve.

    Compiled code is kept in ``NUMBA_CACHE_DIR`` where that is set, else with the user's other caches; where these
    cannot be written to, each process compiles for itself, which takes some seconds. So does the one that finds what
    was kept damaged; it removes that from the user's caches, and the next keeps its own.
    """
    global _loaded
    if _loaded is None and os.environ.get(_SWITCH, "1") != "0":
        try:
            _loaded = _kept_or_anew()
        except Exception as error:  # whatever a machine lacks: there is another way
            log.warning("without compiled kernels, several times slower in places: %s", error)
    return _loaded is not None


def _kept_or_anew() -> ModuleType:
    import numba

    if numba.config.DISABLE_JIT:
        raise RuntimeError("NUMBA_DISABLE_JIT is set")
    given = numba.config.CACHE_DIR
    own = "" if given else _cache()
    try:
        numba.config.CACHE_DIR = given or own
        return importlib.import_module("contracts.kernels")
    except Exception as error:
        if not given and not own:
            raise
        log.warning("compiled kernels kept in %s are of no use, compiling them anew: %s", given or own, error)
        if own:
            shutil.rmtree(own, ignore_errors=True)
        numba.config.CACHE_DIR = ""
        return importlib.import_module("contracts.kernels")
    finally:
        numba.config.CACHE_DIR = given


def _cache() -> str:
    """A directory of the kernels as they are, that can be written to; empty for none.

    Numba keeps a function until its own file changes, whatever becomes of those that it calls.
    """
    sources = sorted((Path(__file__).parent / "kernels").glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(root) / "adsieve" / "kernels" / digest[:16]
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return str(directory)
    except (OSError, RuntimeError):  # the latter where nobody knows a home
        return ""
