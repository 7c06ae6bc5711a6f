"""Serving end to end over HTTP, against the same work behind other stacks, against its floor and against its parts.

One run, ``standard()`` towers, the same vectors, the same JSON bodies, wrk with one thread on the same cores: (a)
adsieve, (b) ``naive``: FastAPI with a Pydantic object a candidate, eager PyTorch and MGET from Redis, (c) Ray Serve and
(d) PyTriton with the exported tower and NumPy, each in an environment that this command makes under ``--cache``, (e)
``floor``: adsieve's application that decodes each request and encodes an answer that it knows.

Before anything is timed, every system's answers are held against a slow reference. All servers of a part live at the
same time; in each round, for each case, every one is warmed for a second and then loaded, one after another. Figures
are medians of the rounds, ratios medians of the rounds' ratios. A body has 18 features, three histories of 50 events,
ids and bids; one candidate of fifty is unknown. ``--parts`` chooses of:

- ``light``: every system at each number of candidates and connections; adsieve's p50 against the sum of its parts.
- ``path``: the query path alone, against the naive one.
- ``full``: adsieve and (b) with a heavy ranker of ``iqiyi()`` sizes, whose user rows (b) repeats.
- ``growth``: adsieve over indexes of ``--growth`` ads.

A system that cannot be installed or started here is named as such and left out.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.harness import Target, finish, parser
from benchmarks.serving_check import Expected, Reference, check_server
from benchmarks.serving_load import Measured, Schedule, measure, memory
from benchmarks.serving_parts import PARTS, measure_parts, sum_of_parts
from benchmarks.serving_processes import CannotRunError, Server
from benchmarks.serving_requests import bodies
from benchmarks.serving_systems import (
    ADSIEVE,
    FULL_STAGE,
    NAIVE,
    RAY,
    SYSTEMS,
    TRITON,
    Starting,
    has_workers,
    start_system,
)
from benchmarks.serving_world import World, make_world
from benchmarks.serving_wrk import require_wrk
from service.settings import Settings

CORES = 2
ATTEMPTS = 3
"""To start a system: PyTriton may ask for its configuration before it listens."""
MAIN, MANY = 1_000, 8
"""Candidates and connections that targets are of."""
PARTS_OF_RUN = ("light", "path", "full", "growth")
NAIVE_LIGHT, OTHERS_LIGHT, NAIVE_FULL, PATH, ABOVE_PARTS = 10.0, 2.0, 15.0, 6.0, 1.3
CHECKED = 4
"""Bodies of each case that every system is checked with."""

Bodies = list[dict[str, Any]]


def main() -> int:
    """Measure what is asked for and print the figures beside the targets."""
    options = _options()
    require_wrk()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    figures: dict[str, Any] = {
        "schedule": f"{options.rounds} rounds, {options.seconds:g} s of load after 1 s of warming, systems by turns",
        "cores of servers and wrk together": len(cores),
        "workers of each system": options.workers,
        "workers of adsieve": options.workers if has_workers() else 1,
        "settings of adsieve": " ".join(options.set) or "defaults",
        "bodies by turns": options.bodies,
    }
    targets: list[Target] = []
    with TemporaryDirectory(prefix="adsieve-serving-") as name:
        run = Run(options, Path(name), figures, targets)
        if {"light", "path", "full"} & set(options.parts):
            run.over_one_world()
        if "growth" in options.parts:
            run.growth()
    return finish(options, figures, targets)


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adsieve" / "serving"
    options.add_argument("--parts", type=_list, default=list(PARTS_OF_RUN), help=", ".join(PARTS_OF_RUN))
    options.add_argument("--systems", type=_list, default=list(SYSTEMS), help=", ".join(SYSTEMS))
    options.add_argument("--candidates", type=_numbers, default=(100, 1_000, 10_000))
    options.add_argument("--connections", type=_numbers, default=(1, 8))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=3.0, help="of load in each block")
    options.add_argument("--workers", type=int, default=CORES, help="of each system")
    options.add_argument("--ads", type=int, default=100_000, help="in the index, a multiple of 100,000")
    options.add_argument("--growth", type=_numbers, default=(100_000, 1_000_000, 5_000_000), help="ads in the indexes")
    options.add_argument("--bodies", type=int, default=32, help="different ones in each case")
    options.add_argument("--set", action="append", default=[], metavar="ADSIEVE_NAME=VALUE", help="of adsieve")
    options.add_argument("--cache", type=Path, default=cache, help="keeps the environments of Ray Serve and PyTriton")
    options.add_argument("--pip-args", type=shlex.split, default=[], help="passed to pip, as PIP_ARGS of the Makefile")
    given = options.parse_args()
    for what, chosen, known in (("parts", given.parts, PARTS_OF_RUN), ("systems", given.systems, SYSTEMS)):
        if unknown := sorted(set(chosen) - set(known)):
            options.error(f"--{what}: expected some of {', '.join(known)}, got {', '.join(unknown)}")
    return given


def _list(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _list(text))


class Run:
    """One run: the options, a directory for all that is made, and the figures and targets that come together.

    Args:
        options: Of the command.
        work: Directory.
        figures: Added to.
        targets: Added to.
    """

    def __init__(self, options: argparse.Namespace, work: Path, figures: dict[str, Any], targets: list[Target]) -> None:
        self._options, self._work, self._figures, self._targets = options, work, figures, targets
        self._settings = dict(entry.split("=", 1) for entry in options.set)

    def over_one_world(self) -> None:
        """The parts ``light``, ``path`` and ``full``."""
        options = self._options
        world = self._world("world", options.ads, with_heavy="full" in options.parts, with_plain=True)
        light, reference = (
            {count: self._bodies(count, world, "light") for count in options.candidates},
            Reference(world),
        )
        if "light" in options.parts:
            self._compare("light", options.systems, world, light, reference)
        if "path" in options.parts or "light" in options.parts:
            self._path(world)
        if "full" in options.parts:
            systems = [name for name in options.systems if name in FULL_STAGE]
            self._compare("full", systems, world, {MAIN: self._bodies(MAIN, world, "full")}, reference)

    def growth(self) -> None:
        """adsieve alone over indexes of several sizes, all served at the same time."""
        case = f"growth, {MAIN} candidates"
        worlds = [
            self._world(f"of-{count}", count, with_heavy=False, with_plain=False) for count in self._options.growth
        ]
        measured = Measured()
        cases = {case: [msgspec.json.encode(body) for body in self._bodies(MAIN, worlds[0], "light")]}
        starters = {f"{world.num_ads} ads": (ADSIEVE, world) for world in worlds}
        with self._servers(starters, cases[case][0]) as servers:
            measure(servers, cases, self._schedule, self._directory("growth-load"), measured)
            self._figures.update(memory(servers, "growth"))
        self._figures.update(measured.figures())

    def _compare(
        self, stage: str, names: Sequence[str], world: World, given: Mapping[int, Bodies], reference: Reference
    ) -> None:
        """Check, load, memory and targets of one stage."""
        expected = {count: [reference(body) for body in sent[:CHECKED]] for count, sent in given.items()}
        cases = {f"{stage}, {count} candidates": [msgspec.json.encode(one) for one in given[count]] for count in given}
        measured = Measured()
        with self._servers({name: (name, world) for name in names}, next(iter(cases.values()))[0]) as servers:
            self._check(stage, servers, given, expected)
            self._figures.update(memory(servers, f"{stage}, after the checks"))
            measure(servers, cases, self._schedule, self._directory(f"{stage}-load"), measured)
            self._figures.update(memory(servers, f"{stage}, after the load"))
        self._figures.update(measured.figures())
        self._figures[f"{stage}, largest share of a core that idle systems took"] = measured.bystanders
        self._add_ratios(stage, measured)
        if stage == "light":
            self._alone = measured

    def _check(
        self, stage: str, servers: Sequence[Server], given: Mapping[int, Bodies], expected: Mapping[int, list[Expected]]
    ) -> None:
        for server in servers:
            errors = [check_server(server, sent[:CHECKED], expected[count]) for count, sent in given.items()]
            self._figures[f"{stage}, {server.name}, largest error of a utility, in bids"] = max(errors)

    def _add_ratios(self, stage: str, measured: Measured) -> None:
        case = f"{stage}, {MAIN} candidates", MANY
        others = [name for name in (RAY, TRITON) if (case, name) in measured.loads]
        ratios = {name: measured.ratio(case, ADSIEVE, name) for name in SYSTEMS if name != ADSIEVE}
        for name, ratio in ratios.items():
            if (case, name) in measured.loads:
                self._figures[f"{case[0]}, {MANY} connections, adsieve by {name}"] = ratio
        wanted = NAIVE_LIGHT if stage == "light" else NAIVE_FULL
        if NAIVE in self._options.systems:
            self._targets.append(Target(f"{stage} stage, times (b) naive", ratios[NAIVE], at_least=wanted))
        if stage == "light" and others:
            best = min(ratios[name] for name in others)
            title = f"light stage, times the better of {' and '.join(others)}"
            self._targets.append(Target(title, best, at_least=OTHERS_LIGHT))

    def _path(self, world: World) -> None:
        """Parts of a request alone, and where the whole was measured, the whole against them."""
        settings = Settings(store=world.store, **_python_names(self._settings))
        given = self._bodies(MAIN, world, "light")
        found = measure_parts(world, given, settings, self._directory("parts"), self._options.seconds)
        self._figures.update({f"{MAIN} candidates, {name}, ms": value for name, value in found.items()})
        naive = min(found[f"naive query path, {threads}"] for threads in ("1 thread", "2 threads"))
        total, ratio = sum_of_parts(found), naive / found["query path"]
        self._figures[f"sum of {', '.join(PARTS)}, ms"] = total
        self._targets.append(Target("query path, times faster than the better naive one", ratio, at_least=PATH))
        case = f"light, {MAIN} candidates", 1
        if "light" in self._options.parts and (case, ADSIEVE) in self._alone.loads:
            above = self._alone.p50(case, ADSIEVE) / total
            self._targets.append(Target("p50 at 1 connection, by the sum of its parts", above, at_most=ABOVE_PARTS))

    @property
    def _schedule(self) -> Schedule:
        options = self._options
        return Schedule(rounds=options.rounds, seconds=options.seconds, connections=options.connections)

    @contextmanager
    def _servers(self, starters: Mapping[str, tuple[str, World]], body: bytes) -> Iterator[list[Server]]:
        """Start systems one after another, by the names that they get; those that cannot run are named and left out."""
        servers: list[Server] = []
        try:
            for title, (name, world) in starters.items():
                try:
                    servers.append(_attempted(partial(self._started, name, world, body)))
                    servers[-1].title = title
                except CannotRunError as error:
                    print(error, file=sys.stderr, flush=True)
                    self._figures[f"{title}: left out"] = str(error).splitlines()[0]
            yield servers
        finally:
            for server in servers:
                server.stop()

    def _started(self, name: str, world: World, body: bytes) -> Server:
        options = self._options
        given = Starting(world, options.workers, self._work, options.cache, options.pip_args, self._settings)
        server = start_system(name, given)
        try:
            server.wait(body)
        except CannotRunError:
            server.stop()
            raise
        return server

    def _world(self, name: str, num_ads: int, *, with_heavy: bool, with_plain: bool) -> World:
        print(f"making an index of {num_ads:,} ads", file=sys.stderr, flush=True)
        return make_world(self._work / name, num_ads, with_heavy=with_heavy, with_plain=with_plain)

    def _bodies(self, candidates: int, world: World, stage: str) -> Bodies:
        return bodies(self._options.bodies, num_ads=world.num_ads, candidates=candidates, stage=stage)

    def _directory(self, name: str) -> Path:
        directory = self._work / name
        directory.mkdir()
        return directory


def _attempted(starting: Callable[[], Server]) -> Server:
    for _ in range(ATTEMPTS - 1):
        try:
            return starting()
        except CannotRunError as error:
            if not error.may_succeed:
                raise
    return starting()


def _python_names(settings: Mapping[str, str]) -> dict[str, Any]:
    return {name.removeprefix("ADSIEVE_").lower(): value for name, value in settings.items()}


if __name__ == "__main__":
    sys.exit(main())
