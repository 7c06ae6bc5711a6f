"""The report's sections: one for each scenario and log, with the students that were judged there side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.compare import Comparison
from distill.evaluate import Evaluation, Report
from distill.plots import Plot
from distill.recall import RecallReport
from distill.report_plots import FunnelPlots, Named, funnel_plots, reliability_plots
from distill.report_tables import Table, days_notes, days_table, funnel_table, outliers_table, stages_table
from distill.report_verdict import ComparisonVerdict, StudentVerdict, judge_comparison, judge_student


@dataclass(frozen=True)
class Student:
    """One student in a section: what it is called beside others, what was judged on what, and the verdict."""

    name: str
    bundle: str
    teacher: str
    extent: str
    warning: str
    verdict: StudentVerdict


@dataclass(frozen=True)
class Section:
    """What the page shows of one scenario on one log; ``pools`` is empty where recall could not be measured."""

    anchor: str
    title: str
    students: list[Student]
    comparisons: list[ComparisonVerdict]
    pools: str
    funnel_plots: FunnelPlots
    funnel_table: Table
    reliability_plots: list[Plot]
    stages: Table
    days: Table | None
    days_notes: list[str]
    outliers: Table


@dataclass(frozen=True)
class Group:
    """Evaluations of one scenario on one log, named, and the comparisons between them."""

    title: str
    students: list[Named]
    comparisons: list[Comparison]

    def name_of(self, bundle: str) -> str:
        """What the student of a bundle is called; its version where it is not among the evaluations."""
        return next((one.name for one in self.students if one.evaluation.bundle == bundle and one.name), bundle)


def report_groups(report: Report) -> list[Group]:
    """Evaluations by scenario and log, in the order of the report; students get letters where there are several."""
    places = list(dict.fromkeys((one.scenario, one.log) for one in report.evaluations))
    several_logs = len({log for _, log in places}) > 1
    return [
        Group(
            title=f"{scenario} on {Path(log).name}" if several_logs else scenario,
            students=_named([one for one in report.evaluations if (one.scenario, one.log) == (scenario, log)]),
            comparisons=[one for one in report.comparisons if (one.scenario, one.log) == (scenario, log)],
        )
        for scenario, log in places
    ]


def build_section(group: Group, number: int) -> Section:
    """Lay out one group; ``number`` makes its anchor."""
    recalls = [one.evaluation.recall for one in group.students if one.evaluation.recall is not None]
    return Section(
        anchor=f"part-{number}",
        title=group.title,
        students=[_student(one) for one in group.students],
        comparisons=[
            judge_comparison(one, group.name_of(one.bundle), group.name_of(one.against)) for one in group.comparisons
        ],
        pools=_pools(recalls[0]) if recalls else "",
        funnel_plots=funnel_plots(group.students),
        funnel_table=funnel_table(group.students),
        reliability_plots=reliability_plots(group.students),
        stages=stages_table(group.students),
        days=days_table(group.students),
        days_notes=days_notes(group.students),
        outliers=outliers_table(group.students),
    )


def explored_sets(groups: Sequence[Group]) -> Iterator[tuple[str, Evaluation | Comparison]]:
    """What the table of all slices offers: the comparisons after the students of each group."""
    for group in groups:
        for student in group.students:
            yield f"{group.title}: {student.name or student.evaluation.bundle}", student.evaluation
        for comparison in group.comparisons:
            after, before = group.name_of(comparison.bundle), group.name_of(comparison.against)
            yield f"{group.title}: {after} less {before}", comparison


def _named(evaluations: Sequence[Evaluation]) -> list[Named]:
    if len(evaluations) == 1:
        return [Named("", evaluations[0])]
    return [Named(f"student {_letter(place)}", one) for place, one in enumerate(evaluations)]


def _letter(place: int) -> str:
    """A, B, ..., and numbers where the alphabet ends.

    Example:
        >>> _letter(1), _letter(26)
        ('B', '27')
    """
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def _student(named: Named) -> Student:
    one = named.evaluation
    other_teacher, who = one.trained_on != one.teacher_version, named.name or "This student"
    return Student(
        name=named.name,
        bundle=one.bundle,
        teacher=one.teacher_version,
        extent=f"{one.requests:,} requests with {one.pairs:,} pairs, {one.first} to {one.last}",
        warning=f"{who} was distilled from another teacher, {one.trained_on}." if other_teacher else "",
        verdict=judge_student(one),
    )


def _pools(recall: RecallReport) -> str:
    fewest, most = recall.pool_size
    size = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"{recall.requests:,} requests whose whole eligible pool the teacher scored, {size} ads each."
