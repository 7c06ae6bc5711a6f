"""Whether compiled kernels serve in this process: asked for once, before anything is timed or served.

Numba is optional: where it is not installed, or cannot work on this machine, the references in NumPy serve.
"""

import importlib
import logging
import os
import shutil
from collections.abc import Callable
from types import ModuleType

from contracts.kernel_cache import kernel_cache, one_compiles

log = logging.getLogger(__name__)

_SWITCH = "ADSIEVE_COMPILED"
_loaded: ModuleType | None = None


def kernels() -> ModuleType | None:
    """``contracts.kernels``, once it was prepared here; None is for NumPy."""
    return _loaded


def prepare() -> bool:
    """Load the kernels, which compiles them where no earlier process kept them; returns whether they serve.

    Compiled code is kept in ``NUMBA_CACHE_DIR`` where that is set, else with the user's other caches, for which one
    process compiles while the others wait. Where these cannot be written to and ``ADSIEVE_KERNELS`` brings none along,
    each process compiles for itself, which takes some seconds. So does the one that finds what was kept damaged; it
    removes that from the user's caches, and the next keeps its own.
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
    try:
        if given:
            return _from(given, lambda: None)
        with kernel_cache() as own:
            if own is None:
                return _load()
            with one_compiles(own):
                return _from(str(own), lambda: shutil.rmtree(own, ignore_errors=True))
    finally:
        numba.config.CACHE_DIR = given


def _from(directory: str, remove: Callable[[], None]) -> ModuleType:
    """The kernels as kept in a directory, or made anew once ``remove`` was called, which is kept nowhere."""
    import numba

    try:
        numba.config.CACHE_DIR = directory
        return _load()
    except Exception as error:
        log.warning("compiled kernels kept in %s are of no use, compiling them anew: %s", directory, error)
        remove()
        numba.config.CACHE_DIR = ""
        return _load()


def _load() -> ModuleType:
    return importlib.import_module("contracts.kernels")
