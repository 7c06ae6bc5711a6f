"""Every code block of the pages and of the README runs, on a log with the README's names and days.

The README's steps run once, and each page in a copy of what they leave. What is replaced or left out stands below.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import promql_parser
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

import adsieve
from adlogs import presets, simulate
from contracts.config import convert
from docs.writers import files, metrics
from indexing.release_limits import ReleaseLimits
from indexing.update_input import read_lines
from loading import load

ROOT = Path(adsieve.__file__).parent


runner = load("docs/page_runner.py")
ELSEWHERE = {
    "docs/tutorial.md": "tests/e2e/test_tutorial.py runs it",
    "docs/how-to/deploy.md": "needs Docker, a cluster or systemd as root; tests/deploy checks what it names",
    "docs/how-to/gpu.md": "needs a GPU: tests/gpu",
    "docs/how-to/kserve.md": "needs a cluster with KServe; tests/service/test_kserve.py asks the routes",
    "docs/how-to/scenarios.md": "tests/e2e/test_third_scenario.py does the same with a scenario of its own",
}
FOLDERS = ("docs", "docs/concepts", "docs/how-to")
PAGES = [
    name
    for folder in FOLDERS
    for name in sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.md"))
    if name not in ELSEWHERE
]
LEFT_OUT = {
    r"make (demo|test)": "run by .ci/run",
    r"adsieve simulate logs --preset demo": "the fixture makes the same world with a fifth of its requests",
    r"pip install ": "what it installs is there: requirements/dev.txt",
    r"xdg-open ": "needs a desktop; tests/service/console_browser.py opens the page in Chromium",
    r".* --mlflow http://mlflow:5000": "needs a tracking server; tests/heavy_ranker/test_mlflow.py logs to files",
    r".* --ray-address auto": "needs a cluster of Ray; tests/indexing/test_ray_embed.py has actors of this machine",
}
"""Commands that do not run here, as far as their beginning goes, each with the reason."""
REPLACED: dict[str, dict[str, str]] = {
    "docs/how-to/daily-training.md": {"2025-03-12": "2025-03-05", "folds:4": "folds:2"},
    "docs/how-to/feedback.md": {"--out teacher --until 2025-03-12": "--out teacher --until 2025-03-05"},
    "docs/how-to/heavy-host.md": {"http://heavy:8001": "http://127.0.0.1:8001"},
    "docs/how-to/redis.md": {
        "rediss://sieve@cache.internal:6380/0": "redis://store:6379/0",
        " ADSIEVE_REDIS_CA=/etc/ssl/cache-ca.crt": "",
    },
    "docs/how-to/console.md": {"$TOKEN": "...", '"request": {...}': '"request": {"scenario": "shopping", "query": {}}'},
}
"""What would take long, is on other hosts, or has no value on the page."""
EXTRA = """
adsieve distill train --logs logs --candidates scored/candidates --schema shopping.yaml --scenario shopping \
    --from 2025-03-08 --until 2025-03-12 --warm-start none --seed 1 --out new-run
adsieve distill publish --logs logs --candidates scored/candidates --run new-run --from 2025-03-12 \
    --against none --out new
adsieve index build --ads logs/ads --two-tower new --heavy heavy --out new-index
adsieve index publish --two-tower new --heavy heavy --index new-index --store store
adsieve index publish --two-tower shopping --heavy heavy --index index --store store
"""
"""Beside the README's: another bundle and its release, which served between two of `shopping`."""
RARE = {"scales.npy", "updates/surveyed", "hosts/*"}
"""Files of an int8 index, of a survey of damage and of a service that follows updates."""
README_ANSWER = ["ad-009097", "ad-008241"]


def feedback_log(place: Path) -> None:
    """The log as a service would have written it, by days, with outcomes apart."""
    for file in sorted((place / "logs" / "candidates").glob("*.parquet")):
        table = pq.read_table(file)
        is_winner = pc.equal(table["stage"], "winner")
        stage = pc.if_else(is_winner, "candidate", table["stage"])
        labels = [name for name in table.column_names if name.startswith("label_")]
        logged = table.drop_columns([*labels, "position"]).set_column(
            table.schema.get_field_index("stage"), "stage", stage
        )
        shown = table.filter(is_winner).select(["request_id", "ad_id", "position", *labels])
        for name, written in (
            ("candidates", logged),
            ("outcomes", shown.append_column("shown", pa.array([True] * len(shown)))),
        ):
            out = place / ("outcomes" if name == "outcomes" else f"feedback/{name}/{file.stem}")
            out.mkdir(parents=True, exist_ok=True)
            pq.write_table(written, out / file.name)
        (place / "feedback" / "requests" / file.stem).mkdir(parents=True)
        shutil.copy(place / "logs" / "requests" / file.name, place / "feedback" / "requests" / file.stem)


def bundles_of_days(place: Path) -> None:
    """Students of several days; here one of two seeds."""
    (place / "bundles").mkdir()
    for day, bundle in {"03-11": "shopping", "03-10": "new", "03-09": "shopping", "other-seed": "new"}.items():
        (place / "bundles" / day).symlink_to(place / bundle)


def next_heavy(place: Path) -> None:
    """A second heavy bundle."""
    (place / "heavy-2").symlink_to(place / "heavy")


PREPARED: dict[str, Callable[[Path], None]] = {
    "docs/how-to/feedback.md": feedback_log,
    "docs/how-to/nightly-index.md": next_heavy,
    "docs/how-to/version-skew.md": bundles_of_days,
}
READERS: dict[tuple[str, str], Callable[[str], object]] = {
    ("docs/how-to/releases.md", "yaml"): lambda text: convert(yaml.safe_load(text), ReleaseLimits, source="the page"),
    ("docs/how-to/updates.md", "json"): lambda text: list(
        read_lines(text.encode().splitlines(), source="the page", now_us=2_000_000_000_000_000)
    ),
    ("docs/how-to/operate.md", "json"): lambda text: [json.loads(line)["request_id"] for line in text.splitlines()],
}
PRINTED = ("docs/how-to/releases.md",)
"""Pages whose blocks of text begin their lines with what the commands before them print."""


def queries(text: str) -> None:
    """Expressions of Prometheus are read, and name metrics that there are."""
    known = {name for name, *_ in metrics.described()}
    for line in text.splitlines():
        promql_parser.parse(line)
        for name in re.findall(r"adsieve_\w+", line):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in known or name in known, name


def left_out(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in LEFT_OUT)


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the README's steps leave, run as they stand; its answer is in ``answer.json``."""
    home = tmp_path_factory.mktemp("readme")
    place = home / "place"
    place.mkdir()
    demo = msgspec.structs.replace(presets.demo(), requests_per_day=400, num_users=600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(presets.PRESETS, "demo", lambda: demo)
        simulate.simulate(place / "logs", "demo")
    run = runner.Runner(place, runner.environment_of(home))
    consoles = [block for block in runner.blocks(text_of("README.md")) if block.language == "console"]
    commands = [step for block in consoles for step in runner.steps(block.text) if not left_out(step.command)]
    commands.sort(key=lambda step: not step.command.startswith("cat > request.json"))  # a step before it ranks it
    try:
        for step in commands:
            run.shell(step)
    finally:
        run.stop()
    for line in EXTRA.strip().splitlines():
        run.shell(runner.Step(line, ()))
    return run


@pytest.fixture(scope="session")
def redis_url(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis that holds the README's release."""
    server = load("indexing/stores/conftest.py").RedisServer(tmp_path_factory.mktemp("redis")).start()
    made.shell(
        runner.Step(f"adsieve index publish --two-tower shopping --heavy heavy --index index --store {server.url}", ())
    )
    yield server.url
    server.stop()


@pytest.mark.docs
@pytest.mark.timeout(3600)
def test_the_readme_ranks_its_ads_in_its_order(made: Any) -> None:
    answers = [json.loads(line) for line in made.printed.splitlines() if line.startswith('{"request_id"')]
    assert [answer["ads"]["ids"] for answer in answers] == [README_ANSWER]


@pytest.mark.docs
@pytest.mark.timeout(3600)
def test_the_page_of_files_names_those_on_the_disk(made: Any) -> None:
    made.shell(runner.Step("adsieve index update --takedown ad-009097 --store store", ()))
    made.shell(runner.Step("adsieve index update --restore ad-009097 --store store", ()))
    for told, places in (
        (files.BUNDLE_FILES, ("heavy", "shopping")),
        (files.INDEX_FILES, ("index",)),
        (files.STORE_FILES, ("store",)),
    ):
        patterns = {pattern for names, _ in told for pattern in names.split(", ")}
        found = {str(path.relative_to(made.directory / place)) for place in places for path in files_of(made, place)}
        assert not {name for name in found if not any(fnmatch(name, pattern) for pattern in patterns)}
        assert {pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in found)} <= RARE


def files_of(made: Any, place: str) -> list[Path]:
    return [path for path in (made.directory / place).rglob("*") if path.is_file()]


@pytest.mark.docs
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(
    page: str, made: Any, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = runner.blocks(text_of(page))
    if not any(block.language in ("console", "python", "yaml", "json", "promql") for block in found):
        return
    place = tmp_path / "place"
    shutil.copytree(made.directory, place, symlinks=True)
    PREPARED.get(page, lambda place: None)(place)
    replaced = dict(REPLACED.get(page, {}))
    if "redis" in text_of(page) and any("redis" in block.text for block in found):
        replaced["redis://store:6379/0"] = request.getfixturevalue("redis_url")
    records = sorted((place / "store" / "releases" / "shopping").glob("*.json"))
    replaced["RELEASE"] = records[1].stem
    run = runner.Runner(place, made.environment, replaced)
    monkeypatch.chdir(place)
    if page == "docs/how-to/client.md":
        run.serve("adsieve serve --store store")
    try:
        for block in found:
            run_block(run, page, block)
    finally:
        run.stop()
        shutil.rmtree(place)


def run_block(run: Any, page: str, block: Any) -> None:
    """One block as what it is."""
    match block.language:
        case "console":
            for step in runner.steps(block.text):
                if not left_out(step.command):
                    run.shell(step)
        case "python":
            run.python(block.text)
        case "promql":
            queries(block.text)
        case "yaml" | "json":
            READERS[page, block.language](block.text)
        case "text" if page in PRINTED:
            assert not [line for line in block.text.splitlines() if line.split()[0] not in run.printed]


def test_blocks_are_fenced_and_say_what_they_are() -> None:
    for page in (*PAGES, *ELSEWHERE, "README.md"):
        without = runner.FENCE.sub("", text_of(page))
        if page != "docs/tutorial.md":
            assert not re.findall(r"(?:^|\n)\n    \S.*", without), page
        for block in runner.blocks(text_of(page)):
            assert block.language in ("console", "python", "yaml", "json", "promql", "text"), page
            if block.language in ("yaml", "json") and page not in ELSEWHERE:
                assert (page, block.language) in READERS, page


def test_what_is_left_out_or_replaced_is_there() -> None:
    texts = {page: text_of(page) for page in (*PAGES, "README.md")}
    commands = [
        step.command
        for text in texts.values()
        for block in runner.blocks(text)
        if block.language == "console"
        for step in runner.steps(block.text)
    ]
    assert len(commands) > 60
    for pattern in LEFT_OUT:
        assert any(re.match(pattern, command) for command in commands), pattern
    for page, pairs in REPLACED.items():
        assert [old for old in pairs if old not in texts[page]] == []
    assert all((ROOT / page).exists() for page in ELSEWHERE)
    assert all(page in texts for page in (*REPLACED, *PREPARED, *(page for page, _ in READERS)))
