"""`adsieve schema infer`: proposes a feature schema for a log from samples of it, with a reason for each guess."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adlogs.evidence import Suspicion, shown_alone, suspicion
from adlogs.infer_kinds import FeatureGuess, category_table, guess_feature
from adlogs.infer_profile import is_list_type, profile_of
from adlogs.infer_sequences import guess_sequence, sequence_groups
from adlogs.infer_source import InferSource, read_source
from adlogs.infer_tasks import TaskGuess, guess_tasks
from adlogs.infer_text import proposal_text
from contracts.artifact import write_bytes
from contracts.errors import InputError
from contracts.progress import Advance, progress
from contracts.schema import SIDES, Side, load_schema

SAMPLE_ROWS = 100_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_OUTCOMES = ("label_", "teacher_", "light_", "true_")
# The scenario is taken from the ad: the index knows it there, while callers would have to send it as a feature too.
_NO_FEATURES: dict[Side, frozenset[str]] = {
    "query": frozenset({"request_id", "event_time", "scenario", "labels_as_of", "ads_as_of", "release"}),
    "ad": frozenset({"valid_from", "status", "bid", "objective"}),
    "pair": frozenset({"request_id", "ad_id", "stage", "bid", "objective", "position", "teacher_version", "shown"})
    | {"sample_weight", "explore_propensity", "labels_as_of"},
}


@dataclass
class Proposal:
    """A schema with its reasons.

    Args:
        tasks: And objectives.
        features: In the order of the file.
        tables: Name to what stands there and why.
        described: What was looked at.
        towers: Whether it is for towers, which read no pairs.
    """

    tasks: TaskGuess
    features: list[FeatureGuess] = field(default_factory=list)
    tables: dict[str, tuple[dict[str, int], str]] = field(default_factory=dict)
    described: tuple[str, ...] = ()
    towers: bool = False


def infer_schema(
    logs: Path,
    out: Path,
    *,
    rows: int = SAMPLE_ROWS,
    towers: bool = False,
    request: str | None = None,
    ad: str | None = None,
    shown_as: str | None = None,
) -> Proposal:
    """Write a proposal for a log.

    Args:
        logs: Log directory, or a flat table in Parquet or CSV.
        out: YAML file to write; none is there yet.
        rows: To look at in each dataset.
        towers: Whether features of pairs are left out, as the two-tower needs it.
        request: Of a flat table, its column of requests.
        ad: Of a flat table, its column of ads.
        shown_as: How the file names itself, where ``out`` is not where it will stay.

    Raises:
        LogError: There is nothing to read, or no outcome.
        InputError: ``out`` is there already.
    """
    if out.exists():
        raise InputError(
            f"{out}: is there already, expected the name of a new file", next_step="remove it, or choose another --out"
        )
    proposal = propose(logs, rows=rows, towers=towers, request=request, ad=ad)
    write_bytes(out, proposal_text(proposal, logs, shown_as or str(out)).encode())
    load_schema(out)
    return proposal


def propose(
    logs: Path, *, rows: int = SAMPLE_ROWS, towers: bool = False, request: str | None = None, ad: str | None = None
) -> Proposal:
    """The proposal alone."""
    source = read_source(logs, rows, request=request, ad=ad)
    proposal = Proposal(tasks=guess_tasks(source, logs), described=source.described, towers=towers)
    columns = [(side, name) for side in SIDES for name in source.samples[side].names if _is_candidate(side, name)]
    with progress("Measuring", total=len(columns), unit="columns") as advance:
        ad_values = _ad_values(source)
        for side in SIDES:
            _add_side(proposal, source, side, ad_values, advance)
    return proposal


def _add_side(
    proposal: Proposal, source: InferSource, side: Side, ad_values: Mapping[str, pa.Array], advance: Advance
) -> None:
    sample = source.samples[side]
    groups = sequence_groups(list(sample.names)) if side == "query" else {}
    for name in sample.names:
        if not _is_candidate(side, name) or ("." in name and side == "query"):
            continue
        advance(1, note=name)
        guess = _guess(proposal, source, side, name)
        if proposal.towers and side == "pair" and not guess.left_out:
            guess.leave_out(f"{guess.comment}; of a pair, which the heavy ranker reads and towers cannot")
        _keep(proposal, guess)
    for group, columns in groups.items():
        advance(len(columns), note=group)
        found = guess_sequence(group, columns, sample, ad_values)
        if not _NAME.fullmatch(group):
            found.feature.leave_out(f"{group!r} is no name of a feature: a letter, then letters, digits, underscores")
        _keep(proposal, found.feature)
        if not found.feature.left_out:
            proposal.tables |= found.tables


def _guess(proposal: Proposal, source: InferSource, side: Side, name: str) -> FeatureGuess:
    array = source.samples[side].column(name)
    profile = profile_of(array, is_whole=source.samples[side].is_whole)
    if side == "ad" and name == "ad_id":
        table, why = category_table(profile)
        spec = {"side": side, "kind": "categorical", "table": name}
        return FeatureGuess(name, side, spec, "its own id", table=table, table_comment=why)
    guess = guess_feature(name, side, profile)
    if name in source.evidence:
        guess.comment += f"; {source.evidence[name]}"
    if not _NAME.fullmatch(name):
        return guess.leave_out(f"{name!r} is no name of a feature: a letter, then letters, digits, underscores")
    taken = next((other for other in proposal.features if other.name == name and not other.left_out), None)
    if taken is not None:
        return guess.leave_out(f"the {taken.side} side has a feature of this name")
    found = _leak(source, side, array, proposal.tasks.tasks)
    if found is not None and found.sure:
        return guess.leave_out(f"leak suspected: {found.reason}")
    if found is not None and not guess.left_out:
        guess.check, guess.comment = True, f"{guess.comment}; leak? {found.reason}"
    return guess


def _leak(source: InferSource, side: Side, array: pa.Array, tasks: list[str]) -> Suspicion | None:
    """What a column knows of the outcomes, on the candidates whose row the sample has."""
    if is_list_type(array.type):
        return None
    rows = source.rows[side]
    if side == "pair" and (found := shown_alone(array, source.shown)) is not None:
        return found
    doubtful = None
    for task in tasks:
        known = (rows >= 0) & ~np.isnan(source.outcomes[task])
        found = suspicion(array.take(pa.array(rows[known])), source.outcomes[task][known], task)
        if found is not None and found.sure:
            return found
        doubtful = doubtful or found
    return doubtful


def _keep(proposal: Proposal, guess: FeatureGuess) -> None:
    proposal.features.append(guess)
    if guess.table is not None and not guess.left_out:
        proposal.tables[guess.name] = (guess.table, guess.table_comment)


def _ad_values(source: InferSource) -> dict[str, pa.Array]:
    """Distinct values, as text, of the columns of ads that become categories."""
    found, sample = {}, source.samples["ad"]
    for name in sample.names:
        array = sample.column(name) if _is_candidate("ad", name) and _NAME.fullmatch(name) else None
        if array is None or is_list_type(array.type):
            continue
        guess = guess_feature(name, "ad", profile_of(array))
        if name == "ad_id" or (guess.spec.get("kind") == "categorical" and not guess.left_out):
            found[name] = pc.unique(array.drop_null()).cast(pa.string())
    return found


def _is_candidate(side: Side, name: str) -> bool:
    return name not in _NO_FEATURES[side] and not name.startswith(_OUTCOMES)


def as_rows(proposal: Proposal) -> list[dict[str, Any]]:
    """A row a feature, for a table or JSON."""
    return [
        {
            "side": guess.side,
            "feature": guess.name,
            "kind": guess.spec.get("kind"),
            "used": not guess.left_out,
            "check": guess.check,
            "why": guess.comment,
        }
        for guess in proposal.features
    ]
