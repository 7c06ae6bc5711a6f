"""The notebook runs from its first cell to its last, in a kernel of this environment."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import adsieve

NOTEBOOK = Path(adsieve.__file__).parent / "docs" / "funnel.ipynb"


@pytest.mark.docs
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=900).execute()
    assert any("rank correlation" in output.get("text", "") for output in notebook.cells[-2].outputs)


def test_it_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
