"""What all tests share: the real log, where it is at hand."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kuairand() -> Path:
    """Folder of the real log; the test is skipped where ADSIEVE_KUAIRAND does not name one."""
    folder = os.environ.get("ADSIEVE_KUAIRAND")
    if not folder:
        pytest.skip("ADSIEVE_KUAIRAND is not set: it names the folder of the real log")
    return Path(folder)
