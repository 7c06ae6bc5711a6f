"""The pages build as a site, without a warning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import adsieve

ROOT = Path(adsieve.__file__).parent


@pytest.mark.docs
def test_the_site_builds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = (tmp_path / "site").rglob("*.html")
    fetched = [
        page.name
        for page in pages
        if 'src="http' in page.read_text() or '<link rel="stylesheet" href="http' in page.read_text()
    ]
    assert not fetched
