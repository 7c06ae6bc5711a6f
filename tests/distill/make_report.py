"""Reports of made-up numbers, of any size: what the page looks like does not depend on where the numbers come from."""

import math

import numpy as np

from distill.compare import Comparison, RecallDifference, SliceDifference
from distill.evaluate import Evaluation, Report
from distill.measures import Reliability, SliceMetrics
from distill.recall import SURVIVORS, RecallCurve, RecallReport

HEADS = ("click", "conversion")
STAGES = ("winners", "candidates", "eligible")
METRICS = ("kl", "log_mae", "normalised_entropy", "auc", "gauc", "calibration")
_CENTRES = (0.001, 0.05, 0.7, 0.74, 0.68, 1.0)
_WIDTHS = (0.0002, 0.004, 0.01, 0.006, 0.01, 0.05)
_RANKINGS = {"student": 12.0, "bid x historical rate": 60.0, "bid only": 200.0, "random": 450.0}


def make_report(
    *,
    scenarios: int = 1,
    bundles: int = 2,
    columns: int = 3,
    values: int = 6,
    seed: int = 0,
    texts: tuple[str, ...] = (),
) -> Report:
    """A report with every part: two heads, three stages, recall with regret, and each bundle against the first.

    Args:
        scenarios, bundles: Each bundle is judged in each scenario.
        columns: That cut slices, beside days that trained the teacher and unseen ones.
        values: Of each column.
        texts: Values of a further column ``text``.
    """
    random = np.random.default_rng(0)
    names = {f"column_{column}": [f"value {value}" for value in range(values)] for column in range(columns)}
    names |= {"teacher days": ["trained", "unseen"]} | ({"text": list(texts)} if texts else {})
    scenario_names = ("standard", "shopping", "video")[:scenarios]
    evaluations = [
        _evaluation(random, scenario, f"two_tower-{scenario}-{bundle:012x}", names)
        for scenario in scenario_names
        for bundle in range(bundles)
    ]
    comparisons = []
    for scenario in scenario_names:
        first, *later = [one for one in evaluations if one.scenario == scenario]
        comparisons += [_comparison(random, first, one) for one in later]
    return Report(evaluations=evaluations, comparisons=comparisons)


def _evaluation(random: np.random.Generator, scenario: str, bundle: str, names: dict[str, list[str]]) -> Evaluation:
    parts = [("all", "all"), *((column, value) for column, values in names.items() for value in values)]
    slices = [
        _metrics(random, stage, part, head, model, against)
        for stage in STAGES
        for part in parts
        for head in HEADS
        for model, against in (
            ("student", "teacher"),
            *((("student", "labels"), ("teacher", "labels")) if stage == "winners" else ()),
        )
    ]
    return Evaluation(
        bundle=bundle,
        log="/data/log",
        scenario=scenario,
        teacher_version="heavy-all-0123456789ab",
        trained_on="heavy-all-0123456789ab",
        first="2026-03-01T00:10:00Z",
        last="2026-03-03T13:10:00Z",
        requests=12_345,
        pairs=1_234_567,
        tasks=HEADS,
        slices=slices,
        reliability=[_reliability(random, row) for row in slices if row.model == "student"],
        recall=_recall(random),
    )


def _metrics(
    random: np.random.Generator, stage: str, part: tuple[str, str], head: str, model: str, against: str
) -> SliceMetrics:
    found, intervals = {}, {}
    for key, centre, width in zip(METRICS, _CENTRES, _WIDTHS, strict=True):
        undefined = against == "labels" and key in ("kl", "log_mae")
        half = width * (0.2 if part[0] == "all" else random.uniform(0.3, 1.5))
        value = math.nan if undefined else max(centre + float(random.normal()) * width, centre / 10)
        found[key] = value
        intervals[key] = (value - half, value + half)
    return SliceMetrics(
        stage=stage,
        slice=part[0],
        value=part[1],
        head=head,
        model=model,
        against=against,
        rows=int(random.integers(1_000, 1_000_000)),
        requests=int(random.integers(100, 12_345)),
        intervals=intervals,
        **found,
    )


def _reliability(random: np.random.Generator, row: SliceMetrics) -> Reliability:
    predicted = np.geomspace(0.002, 0.3, 10)
    observed = predicted * np.exp(random.normal(0, 0.1, 10))
    place = {name: getattr(row, name) for name in ("stage", "slice", "value", "head", "against")}
    return Reliability(**place, predicted=predicted.tolist(), observed=observed.tolist())


def _recall(random: np.random.Generator) -> RecallReport:
    curves = []
    for order in ("utility", *(f"equal bids, {head}" for head in HEADS)):
        for ranking, scale in _RANKINGS.items():
            if ranking == "bid only" and order != "utility":
                continue
            recall = 1 - np.exp(-np.array(SURVIVORS) / (scale * random.uniform(0.8, 1.2)))
            lost = (1 - recall) * 0.4
            figures = {"recall": recall, "utility_lost": lost, "regret": lost + 0.02}
            ends = {
                f"{name}_{end}": np.clip(values + sign * 0.1 * np.sqrt(values * (1 - values)), 0, 1).tolist()
                for name, values in figures.items()
                for end, sign in (("low", -1), ("high", 1))
            }
            lists = {name: values.tolist() for name, values in figures.items()}
            curves.append(RecallCurve(order=order, ranking=ranking, **lists, **ends))
    orders = dict.fromkeys(curve.order for curve in curves)
    return RecallReport(
        requests=400,
        pool_size=(1_000, 1_200),
        top_k=10,
        survivors=list(SURVIVORS),
        curves=curves,
        heavy_regret=dict.fromkeys(orders, (0.02, 0.015, 0.025)),
    )


def _comparison(random: np.random.Generator, first: Evaluation, later: Evaluation) -> Comparison:
    rows = [
        _difference(random, before, after, key)
        for before, after in zip(first.slices, later.slices, strict=True)
        if after.model == "student"
        for key in METRICS
        if not math.isnan(getattr(before, key))
    ]
    rank = {"worse": 0, "unclear": 1, "better": 2}
    return Comparison(
        scenario=first.scenario,
        log=first.log,
        bundle=later.bundle,
        against=first.bundle,
        rows=sorted(rows, key=lambda row: (rank[row.verdict], -row.worsening)),
        recall=_recall_differences(first, later),
    )


def _difference(random: np.random.Generator, before: SliceMetrics, after: SliceMetrics, key: str) -> SliceDifference:
    old, new = getattr(before, key), getattr(after, key)
    difference = abs(math.log(new)) - abs(math.log(old)) if key == "calibration" else new - old
    half = abs(difference) * float(random.uniform(0.3, 3.0))
    worse = -difference if key in ("auc", "gauc") else difference
    verdict = "unclear" if half > abs(difference) else "worse" if worse > 0 else "better"
    relative = {"auc": 1 - old, "gauc": 1 - old, "calibration": 1.0}.get(key, old)
    return SliceDifference(
        **{name: getattr(after, name) for name in ("stage", "slice", "value", "head", "against", "rows", "requests")},
        metric=key,
        before=old,
        after=new,
        difference=difference,
        low=difference - half,
        high=difference + half,
        worsening=worse / relative,
        verdict=verdict,
    )


def _recall_differences(first: Evaluation, later: Evaluation) -> list[RecallDifference]:
    found = []
    for order in ("utility", *(f"equal bids, {head}" for head in HEADS)):
        for metric in ("recall", "utility_lost", "regret"):
            curves = [one.recall.curve(order, "student") for one in (first, later) if one.recall]
            for place, survivors in enumerate(SURVIVORS):
                before, after = (getattr(curve, metric)[place] for curve in curves)
                difference = after - before
                good = difference > 0 if metric == "recall" else difference < 0
                found.append(
                    RecallDifference(
                        order=order,
                        survivors=survivors,
                        metric=metric,
                        before=before,
                        after=after,
                        difference=difference,
                        low=difference - 0.002,
                        high=difference + 0.002,
                        verdict="unclear" if abs(difference) < 0.002 else "better" if good else "worse",
                    )
                )
    return found
