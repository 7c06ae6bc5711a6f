"""``adsieve distill publish``: a sealed bundle out of a finished run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contracts.console import From, Json, Until, print_json
from distill.cli_options import Candidates, Logs, Threads, scenario_names
from distill.cli_warm import Store, serving_in

if TYPE_CHECKING:
    from distill.gate import Gate

NOTHING = "none"
MAX_REASON = 500


def publish(
    context: typer.Context,
    logs: Logs,
    run: Annotated[Path, typer.Option(help="Finished run directory.")],
    out: Annotated[Path, typer.Option(help="Bundle to create; it appears whole or not at all.")],
    scenario: Annotated[
        str | None,
        typer.Option(
            autocompletion=scenario_names, help="Of a student of several scenarios, the one that the bundle serves."
        ),
    ] = None,
    candidates: Candidates = None,
    start: From = None,
    end: Until = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|none",
            help="Bundle that the student is held against on this log; `none` leaves the floors. By default the one "
            "that serves the scenario in --store, where there is one.",
        ),
    ] = None,
    limits: Annotated[
        Path | None,
        typer.Option(help="YAML file with limits of the launch gate, where they are not to be the usual ones."),
    ] = None,
    override: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Seal the student although it falls below the limits. The reason, the time and what failed stay in "
            "gate.json of the bundle.",
        ),
    ] = None,
    store: Store = "store",
    threads: Threads = 2,
    json: Json = False,
) -> None:
    """Seal a bundle: graphs checked against the model, weights, saved requests, feature profile and slices.

    A student whose slices fall below the limits beside the one that serves is refused, with exit code 1, and every such
    slice is named; so is one whose requests are too few to judge anything. Judge it on days that it has not learned
    from, where there are some: --from and --until choose them.
    """
    import msgspec

    from contracts.records import LogPaths
    from distill.gate_record import GATE_FILE, GateRecord
    from distill.one_scenario import of_scenario
    from distill.publish import publish_student
    from distill.run import load_run

    trained, log = of_scenario(load_run(run), scenario), LogPaths.under(logs, candidates)
    serving = serving_in(context, store)
    gate = make_gate(against, serving(trained.summary.scenario) if against is None else None, limits, override)
    bundle = publish_student(trained, log, out, start=start, end=end, threads=threads, gate=gate)
    record = msgspec.json.decode(bundle.file(GATE_FILE).read_bytes(), type=GateRecord)
    if json:
        print_json({"bundle": str(out), "version": bundle.manifest.version, "gate": record})
        return
    for line in record.lines():
        print(line)
    if record.override is not None:
        print(f"sealed all the same: {record.override.reason}", file=sys.stderr)
    elif override is not None:
        print("nothing failed: the override was not needed and is not recorded", file=sys.stderr)
    print(f"sealed {bundle.manifest.version} at {out}")


def make_gate(option: str | None, serving: Path | None, limits: Path | None, override: str | None) -> "Gate":
    """What the student is held against.

    Args:
        option: As given: a path, ``none``, or None for what serves.
        serving: The bundle that serves, if any.
        limits: File with limits.
        override: Reason to seal a student that fails.

    Raises:
        InputError: The reason is empty, the limits are malformed, or the path is no bundle.
    """
    from contracts.bundle import open_bundle
    from contracts.config import load_config
    from contracts.errors import InputError
    from distill.gate import Gate
    from distill.gate_limits import Limits

    if override is not None and not (override.strip() and override.isprintable() and len(override) <= MAX_REASON):
        raise InputError(f"--override: expected a reason of one line and at most {MAX_REASON:,} printable characters")
    path = serving if option is None else None if option == NOTHING else Path(option)
    return Gate(
        limits=Limits() if limits is None else load_config(limits, Limits),
        against=None if path is None else open_bundle(path, kind="two_tower"),
        override=override,
    )
