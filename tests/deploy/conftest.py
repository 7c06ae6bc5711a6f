"""What the tests of deploy/ share: its files, its programs, and the small store of the service's tests."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from loading import load

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"


_service = load("service/conftest.py")
sealing, servers, artifacts, world = _service.sealing, _service.servers, _service.artifacts, _service.world
settings, example_query = _service.settings, _service.example_query


@pytest.fixture(scope="session")
def deploy() -> Path:
    return DEPLOY


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def program():
    """Path of a program that a pinned package brings into the environment's own directory of programs."""
    return lambda name: str(Path(sys.executable).with_name(name))


@pytest.fixture(scope="session")
def installed():
    """Path of a program of the machine; the test is skipped where it has none."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"{name} is not installed")
        return path

    return find


@pytest.fixture(scope="session")
def documents():
    """The documents of a YAML file."""
    return lambda path: [document for document in yaml.safe_load_all(Path(path).read_text()) if document]
