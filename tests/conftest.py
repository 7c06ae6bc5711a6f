"""What all tests share: the real log, where it is at hand, and a torch whose traces nobody keeps."""

import logging
import os
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Keep pytest's handlers off the logger of torch's traces.

    pytest adds its own to every logger that does not propagate, and torch, which only looks whether this one has any,
    would then write out each step of each trace with its stack: twice the time of an export.
    """
    traces = logging.getLogger("torch.__trace")
    traces.addHandler = lambda hdlr: None


@pytest.fixture(scope="session")
def kuairand() -> Path:
    """Folder of the real log; the test is skipped where ADSIEVE_KUAIRAND does not name one."""
    folder = os.environ.get("ADSIEVE_KUAIRAND")
    if not folder:
        pytest.skip("ADSIEVE_KUAIRAND is not set: it names the folder of the real log")
    return Path(folder)
