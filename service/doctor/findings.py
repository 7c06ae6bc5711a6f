"""What the doctor finds: one line each, how it stands, and what to do about it."""

from typing import Literal

import msgspec

Standing = Literal["ok", "note", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report.

    Args:
        section: Heading that it stands under, such as ``engines``.
        name: What was looked at.
        standing: ``ok``; ``note`` for what only some need; ``warn`` for what works worse than it could; ``fail`` for
            what adsieve needs and does not have.
        found: What was found, in words.
        next_step: What to do, where something is to be done.
        facts: The same as values, for ``--json``.
    """

    section: str
    name: str
    standing: Standing
    found: str
    next_step: str | None = None
    facts: dict[str, str | int | float | bool | None] = {}


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All findings, and whether adsieve can work here."""

    works: bool
    findings: list[Finding]


def diagnosis(findings: list[Finding]) -> Diagnosis:
    """What all findings come to.

    Example:
        >>> bad = Finding(section="libraries", name="numpy", standing="fail", found="not installed")
        >>> diagnosis([bad]).works, diagnosis([]).works
        (False, True)
    """
    return Diagnosis(works=all(one.standing != "fail" for one in findings), findings=findings)


def size(count: int) -> str:
    """Bytes for people.

    Example:
        >>> size(3 << 30), size(512 << 20)
        ('3.0 GiB', '512 MiB')
    """
    return f"{count / (1 << 30):,.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):,.0f} MiB"
