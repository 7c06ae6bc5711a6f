from pathlib import Path

import pytest

from adlogs.simulate import SimulationSummary, simulate


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SimulationSummary]:
    """The tiny world at its own seed, and what its simulation said."""
    directory = tmp_path_factory.mktemp("simulated") / "tiny"
    return directory, simulate(directory, "tiny")
