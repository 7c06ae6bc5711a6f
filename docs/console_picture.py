"""Writes docs/images/console.png: ``python docs/console_picture.py STORE``, of a store as ``adsieve demo`` makes it.

Starts the service, opens the console in a headless Chromium as its tests do, and ranks in the playground: the user of a
saved request with the candidates of all saved requests, so that the funnel has something to drop.
"""

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "console.png"
WIDTH, HEIGHT = 1280, 1060
MOST = 1_000
"""Candidates of the request."""


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="a store with releases")
    parser.add_argument("--scenario", default="shopping")
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args()
    draw(options.store, options.scenario, options.out)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


def draw(store: Path, scenario: str, out: Path) -> None:
    """The picture of the playground over a store."""
    chromium = _module(ROOT / "tests" / "distill" / "chromium.py")
    helpers = _module(ROOT / "tests" / "service" / "console_browser.py")
    program = chromium.find_chromium()
    if program is None:
        raise SystemExit("needs a Chromium on the PATH: apt-get install chromium")
    with (
        helpers.service_process(store, admin_token=helpers.TOKEN) as url,
        tempfile.TemporaryDirectory() as profile,
        chromium.open_chromium(program, Path(profile)) as page,
    ):
        console = helpers.ConsoleBrowser(page, url)
        console.open(width=WIDTH)
        console.run("document.querySelector('#panels a[href=\"#playground\"]').click()")
        console.paste("playground", json.dumps(_request(url, scenario, console_token=helpers.TOKEN)))
        console.press("playground-rank")
        console.wait("document.querySelector('#ads tbody tr')")
        page.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        page.screenshot(out, whole=False)


def _request(url: str, scenario: str, *, console_token: str) -> dict[str, Any]:
    """The first saved request of a scenario, with the candidates of all."""
    with httpx.Client(base_url=f"{url}/admin/console", headers={"Authorization": f"Bearer {console_token}"}) as client:
        listed = client.get("/requests").raise_for_status().json()["requests"]
        saved = [client.get(f"/requests/{one['scenario']}/{one['number']}").raise_for_status().json() for one in listed]
    first = next(one for one in saved if one["scenario"] == scenario)
    ids = [ad_id for one in saved for ad_id in one["candidates"]["ids"]]
    return first | {"candidates": list(dict.fromkeys(ids))[:MOST]}


def _module(path: Path) -> ModuleType:
    """A module of the tests, which are no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
