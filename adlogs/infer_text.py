"""Writes a proposed schema as YAML, one line a guess with its reason; what is left out stands there as a comment."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from adlogs.infer_kinds import FeatureGuess
from adlogs.yaml_text import commented, flow, quoted
from contracts.schema import SIDES

if TYPE_CHECKING:
    from adlogs.infer import Proposal

_HEADINGS = {
    "query": "The request and its user",
    "ad": "The ad",
    "pair": "The pair of both: for the heavy ranker alone",
}


def proposal_text(proposal: "Proposal", logs: Path, out: str) -> str:
    """The file."""
    return "\n".join(_lines(proposal, logs, out)) + "\n"


def _lines(proposal: "Proposal", logs: Path, out: str) -> Iterator[str]:
    flag = " --towers" if proposal.towers else ""
    yield f"# Proposed by `adsieve schema infer {logs}{flag} --out {out}` from"
    for line in proposal.described:
        yield commented(f"  {line}")
    yield "# Read it before you train: `check` asks what figures alone cannot answer, and a line that is commented out"
    yield "# is left out for the reason that it gives. Then: adsieve schema fit"
    yield "version: 1"
    yield from _task_lines(proposal)
    yield "tables:" if proposal.tables else "tables: {}"
    for name, (table, why) in proposal.tables.items():
        yield f"  {quoted(name)}: {flow(table)}  {commented(why)}"
    yield "features:"
    for side in SIDES:
        of_side = [guess for guess in proposal.features if guess.side == side]
        if of_side:
            yield f"  # {_HEADINGS[side]}"
        for guess in sorted(of_side, key=lambda guess: guess.left_out):
            yield from _feature_lines(guess)


def _task_lines(proposal: "Proposal") -> Iterator[str]:
    found = proposal.tasks
    for task in found.tasks:
        yield commented(found.comments[task])
    for task, reason in found.left_out.items():
        yield commented(f"check: left out {task}: {reason}")
    chain = "  # a chain: each happens only after the one before" if found.tasks[1:] else ""
    yield f"tasks: {flow(found.tasks)}{chain}"
    for name in sorted(found.doubtful):
        yield commented(found.comments[name])
    yield f"objectives: {flow(found.objectives)}  # what a bid pays for"


def _feature_lines(guess: FeatureGuess) -> Iterator[str]:
    mark = "# " if guess.left_out else ""
    comment = commented(("check: " if guess.check else "") + guess.comment)
    if guess.spec.get("kind") == "sequence" and not guess.left_out:
        yield f"  {quoted(guess.name)}:  {comment}"
        yield from (f"    {key}: {flow(value)}" for key, value in guess.spec.items() if key != "fields")
        yield "    fields:"
        for name, field in guess.spec["fields"].items():
            yield f"      {quoted(name)}: {flow(field)}  {commented(guess.notes[name])}"
        return
    yield f"  {mark}{quoted(guess.name)}: {flow(guess.spec)}  {comment}"
