"""Everything the doctor looks at, in the order of the report, and the report for people."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from contracts.console import table
from engines.names import NVIDIA_DEVICES
from service.doctor.findings import Diagnosis, Finding, Standing, diagnosis
from service.doctor.libraries import (
    base_findings,
    extra_findings,
    import_fault,
    python_finding,
    serving_findings,
    training_finding,
)
from service.doctor.machine import machine_findings
from service.doctor.stores import redis_findings, store_findings

STYLES: dict[Standing, str] = {"ok": "green", "note": "dim", "warn": "yellow", "fail": "bold red"}
MAX_THREADS = 2


def examine(
    *, bundle: Path | None = None, redis: str | None = None, store: str | None = None, local: Path | None = None
) -> Diagnosis:
    """Look at the machine; nothing is changed but that the cache directory is made, and kernels are compiled into it.

    Args:
        bundle: Whose models the engines are tried on; None draws a small tower.
        redis: URL of a server to look at.
        store: A store to look at, a directory or a URL.
        local: Directory that mirrors a store in Redis.
    """
    with ThreadPoolExecutor(1) as beside:
        imported = beside.submit(import_fault)  # takes seconds in a process of its own, while the rest is looked at
        findings = [python_finding(), *base_findings(), *serving_findings()]
        rest = [*extra_findings(), *machine_findings(NVIDIA_DEVICES)]
        threads = max(1, min(MAX_THREADS, os.cpu_count() or 1))
        rest += _engines(bundle, threads)
        rest += [] if redis is None else redis_findings(redis)
        rest += [] if store is None else store_findings(store, local)
        return diagnosis([*findings, training_finding(imports=imported.result), *rest])


def report(found: Diagnosis) -> Iterator[RenderableType]:
    """A table for each section, and what it comes to."""
    for section, findings in groupby(found.findings, key=lambda finding: finding.section):
        yield _section(section, findings)
    count = {standing: sum(one.standing == standing for one in found.findings) for standing in STYLES}
    verdict = "adsieve works here" if found.works else "adsieve does not work here as it is"
    yield Text(f"{verdict}: {', '.join(f'{number} {standing}' for standing, number in count.items() if number)}")


def _engines(bundle: Path | None, threads: int) -> list[Finding]:
    """Engines import their library; without ONNX Runtime none can be tried."""
    try:
        from service.doctor.engines import engine_findings
    except ImportError as error:
        step = "pip install -r requirements/serve.txt"
        return [Finding(section="engines", name="all", standing="fail", found=str(error), next_step=step)]
    return list(engine_findings(bundle, threads=threads))


def _section(name: str, findings: Iterable[Finding]) -> Table:
    found = table(name, "", "", title=None)
    for one in findings:
        told = Text(one.found)
        if one.next_step is not None:
            told.append(f"\nnext: {one.next_step}", style="dim")
        found.add_row(Text(one.name), Text(one.standing, style=STYLES[one.standing]), told)
    return found
