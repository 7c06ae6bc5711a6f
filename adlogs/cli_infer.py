"""``adsieve schema infer``: proposes the schema of a log that none was written for."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from contracts.console import Json, print_json, print_table, table
from contracts.errors import LogError

ROWS = 100_000


def infer(
    logs: Annotated[Path, typer.Argument(help="Log directory, or one flat table in Parquet or CSV.")],
    out: Annotated[Path, typer.Option(help="YAML file to write: the schema, with a reason for each guess.")],
    towers: Annotated[
        bool, typer.Option("--towers", help="For the two-tower: leave out what is known of a pair alone.")
    ] = False,
    rows: Annotated[
        int, typer.Option(min=1_000, help="Rows to look at in each dataset, spread over its files.")
    ] = ROWS,
    request: Annotated[
        str | None, typer.Option("--request-id", help="Of a flat table: the column that names the request.")
    ] = None,
    ad: Annotated[str | None, typer.Option("--ad-id", help="Of a flat table: the column that names the ad.")] = None,
    as_json: Json = False,
) -> None:
    """Propose a schema: sides, kinds, tables, sequences, tasks, and columns that seem to know the outcome.

    Every guess has its reason beside it; what must not be used, or cannot, is commented out. Read it before you train.
    """
    from adlogs.infer import as_rows, infer_schema

    try:
        proposal = infer_schema(logs, out, rows=rows, towers=towers, request=request, ad=ad)
    except LogError as error:
        error.next_step = error.next_step or "mend what the line above names, and run the same command again"
        raise
    found = as_rows(proposal)
    if as_json:
        print_json({"schema": str(out), "tasks": proposal.tasks.tasks, "features": found})
        return
    shown = table("side", "feature", "kind", "why")
    for row in found:
        kind = row["kind"] if row["used"] else "left out"
        shown.add_row(row["side"], row["feature"], kind, ("check: " if row["check"] else "") + row["why"])
    print_table(shown)
    used = sum(row["used"] for row in found)
    print(f"tasks: {' > '.join(proposal.tasks.tasks)}")
    print(f"{out}: {used} features, {len(found) - used} left out, {sum(row['check'] for row in found)} to check")
    command = ["adsieve", "schema", "fit", str(out), "--logs", str(logs), "--out", f"fitted-{out.name}"]
    print(f"next: read {out}, then {shlex.join(command)} --until TIME")
