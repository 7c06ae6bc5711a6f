"""How far each ad of a CSV log got, and that only what was shown has outcomes."""

import pyarrow as pa
import pyarrow.compute as pc

from adlogs.csv_column import LABEL
from adlogs.csv_summary import Findings
from contracts.records import STAGES

ELIGIBLE, CANDIDATE, WINNER = STAGES


def scenarios(rows: pa.Table, otherwise: str) -> pa.Array:
    """The scenario of each row, ``otherwise`` where it names none."""
    if "scenario" not in rows.schema.names:
        return pa.array([otherwise] * rows.num_rows, pa.string())
    return rows["scenario"].combine_chunks().fill_null(otherwise)


def stages_of(rows: pa.Table, *, otherwise: str) -> pa.Array:
    """The stage of each row: as it stands there; else by ``shown``; else ``otherwise``.

    Example:
        >>> stages_of(pa.table({"shown": [True, False]}), otherwise="winner").to_pylist()
        ['winner', 'candidate']
    """
    if "stage" in rows.schema.names:
        return rows["stage"].combine_chunks().fill_null(ELIGIBLE)
    if "shown" in rows.schema.names:
        return pc.if_else(rows["shown"].fill_null(False), WINNER, CANDIDATE).combine_chunks()
    return pa.array([otherwise] * rows.num_rows, pa.string())


def stages_by_outcome(rows: pa.Table) -> pa.Array:
    """The stage of candidates that tell it in no column: what has an outcome or a position was shown."""
    shown = pa.array([False] * rows.num_rows)
    for name in rows.schema.names:
        if name.startswith(LABEL) or name == "position":
            shown = pc.or_(shown, rows[name].combine_chunks().is_valid())
    return pc.if_else(shown, WINNER, ELIGIBLE)


def without_unshown_outcomes(candidates: pa.Table, findings: Findings) -> pa.Table:
    """What was not shown has neither position nor outcome: such a position and a label of 0 become null.

    A label of 1 stays, for verification to refuse: that ad was shown, or the label is wrong.
    """
    unshown = pc.not_equal(candidates["stage"], WINNER)
    findings.unshown += pc.sum(unshown).as_py() or 0
    for place, name in enumerate(candidates.schema.names):
        column = candidates[name]
        if name == "position":
            cleared = pc.and_(unshown, column.is_valid())
        elif name.startswith(LABEL):
            cleared = pc.and_(unshown, pc.equal(column, 0).fill_null(False))
        else:
            continue
        findings.cleared += pc.sum(cleared).as_py() or 0
        candidates = candidates.set_column(place, name, pc.if_else(cleared, pa.scalar(None, column.type), column))
    return candidates
