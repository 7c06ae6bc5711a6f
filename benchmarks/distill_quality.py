"""What the student's architecture is worth, and what a model for each scenario: KL to the teacher on an unseen day.

For each seed it simulates a log, trains a teacher on its first half, lets it score the rest, and distils by the frozen
presets: the MMOE-DCN student of each scenario, a conventional MLP two-tower of about the same size, and one
multi-domain student for both scenarios. All are judged on the last day, which trained none of them and chose no
setting. Intervals are of a bootstrap over requests and seeds, paired. A reference that sees both sides of a pair
together, beyond any dot product, shows how much room is left below.

An iteration is what it takes to see an idea's effect on one scenario: encode, train and judge its model, or the joint
one. With --real the first comparison is repeated on the real log, raw or converted.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.harness import Target, finish, parser
from benchmarks.pair_reference import train_reference
from benchmarks.relative_kl import Reduction, RequestSums, relative_reduction, request_sums
from benchmarks.scored_log import ScoredLog, real, simulated
from contracts.schema import FeatureSchema
from distill.config import DistillConfig
from distill.data import read_scored, weighted
from distill.loss import bernoulli_kl
from distill.presets import PRESETS
from distill.slices import STAGE_SLICES
from distill.train import forward, train_student
from modeling.batches import Batch, ordered_batches
from modeling.examples import Examples
from modeling.split import split_by_time
from towers.multi_domain import fold_domain

SCENARIOS = ("standard", "shopping")
SLICES = ("winners", "candidates")
OURS, PLAIN, JOINT, REFERENCE = "MMOE-DCN", "plain MLP", "multi-domain", "beyond a dot product"
LEAST_REDUCTION = 0.10
MOST_OF_THE_TIME = 0.5
PAIRS_AT_ONCE = 8_192
REAL = "real log"
REAL_CHANGES = {"epochs": 1}
"""Of the loop, as `adsieve demo` distils on the real log."""

Found = dict[tuple[str, str, str], list[RequestSums]]
"""By scenario, student and slice: one for each seed."""


@dataclass
class Results:
    """What all students came to.

    Args:
        found: KL of each.
        seconds: Of each iteration, by student or, for a student of one scenario, by its scenario.
    """

    found: Found = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, scenario: str, student: str, judged: dict[str, RequestSums]) -> None:
        for slice_, sums in judged.items():
            self.found.setdefault((scenario, student, slice_), []).append(sums)


def main() -> int:
    """All seeds, then the table."""
    options = _options()
    results = Results()
    with ExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(TemporaryDirectory(prefix="adsieve-distill-")))
        for seed in options.seeds:
            log = simulated(directory / f"seed-{seed}", preset=options.preset, seed=seed)
            _one_seed(log, results)
        if options.real:
            _real_log(real(directory / "real", options.real), results)
    reductions = _reductions(results.found)
    _print_table(results.found, reductions)
    return finish(options, dict(_figures(results, reductions)), list(_targets(results, reductions)))


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--preset", default="demo", help="world to simulate (default: demo)")
    options.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9], help="of the worlds (default: 7 8 9)")
    options.add_argument("--real", type=Path, help="the raw KuaiRand-Pure log, or its converted copy")
    options.add_argument("--keep", type=Path, help="directory that keeps logs and teachers for another run")
    return options.parse_args()


def _one_seed(log: ScoredLog, results: Results) -> None:
    """Every student of one world."""
    for scenario in SCENARIOS:
        schema = log.schema(f"simulated_{scenario}")
        for student, config in ((OURS, PRESETS[scenario]()), (PLAIN, PRESETS["plain_mlp"]())):
            with TemporaryDirectory(dir=log.directory) as run:
                began = time.perf_counter()
                judged = _iteration(log, schema, config, (scenario,), Path(run))
                if student == OURS:
                    results.seconds.setdefault(scenario, []).append(time.perf_counter() - began)
                results.add(scenario, student, judged[scenario])
        with TemporaryDirectory(dir=log.directory) as run:
            results.add(scenario, REFERENCE, _reference(log, schema, PRESETS[scenario](), scenario, Path(run)))
    schema = log.schema("simulated_shopping")  # its features are those of both
    with TemporaryDirectory(dir=log.directory) as run:
        began = time.perf_counter()
        judged = _iteration(log, schema, PRESETS["multi_domain"](), SCENARIOS, Path(run))
        results.seconds.setdefault(JOINT, []).append(time.perf_counter() - began)
    for scenario in SCENARIOS:
        results.add(scenario, JOINT, judged[scenario])


def _real_log(log: ScoredLog, results: Results) -> None:
    schema = log.schema("kuairand_towers")
    for student, name in ((OURS, "standard"), (PLAIN, "plain_mlp")):
        config = PRESETS[name]()
        config = msgspec.structs.replace(config, loop=msgspec.structs.replace(config.loop, **REAL_CHANGES))
        with TemporaryDirectory(dir=log.directory) as run:
            results.add(REAL, student, _iteration(log, schema, config, ("standard",), Path(run))["standard"])


def _iteration(
    log: ScoredLog, schema: FeatureSchema, config: DistillConfig, scenarios: tuple[str, ...], run: Path
) -> dict[str, dict[str, RequestSums]]:
    """Train one student and judge it on each of its scenarios."""
    learned = scenarios if config.towers.domains else scenarios[0]
    trained = train_student(schema, log.log, run / "run", config, scenario=learned, start=log.start, end=log.unseen)
    model, found = trained.model.eval(), {}
    for name in scenarios:
        unseen = read_scored(schema, log.log, run / f"unseen-{name}", scenario=name, start=log.unseen)
        student = fold_domain(model, config.towers.domains.index(name)) if config.towers.domains else model
        found[name] = _judged(unseen, _logits(unseen, lambda batch, student=student: forward(student, batch)))
    return found


def _reference(
    log: ScoredLog, schema: FeatureSchema, config: DistillConfig, scenario: str, run: Path
) -> dict[str, RequestSums]:
    """The same for the reference."""
    known = read_scored(schema, log.log, run / "known", scenario=scenario, start=log.start, end=log.unseen)
    training, validation = split_by_time(weighted(known, config), config.validation_share)
    model = train_reference(schema, training, validation, config, run / "run")
    unseen = read_scored(schema, log.log, run / "unseen", scenario=scenario, start=log.unseen)
    return _judged(unseen, _logits(unseen, model))


@torch.no_grad()
def _logits(examples: Examples, predict: Callable[[Batch], Tensor]) -> Tensor:
    return torch.cat([predict(batch) for batch in ordered_batches(examples, pairs_per_batch=PAIRS_AT_ONCE)])


def _judged(examples: Examples, logits: Tensor) -> dict[str, RequestSums]:
    """KL to the teacher on each slice, in fp64."""
    kl = bernoulli_kl(logits.double(), torch.from_numpy(np.asarray(examples.teacher, np.float64))).numpy()
    stage, request = np.asarray(examples.stage), np.asarray(examples.request_row)
    inside = {name: stage >= STAGE_SLICES[name] for name in SLICES}
    return {name: request_sums(kl[rows], request[rows]) for name, rows in inside.items()}


Reductions = dict[tuple[str, str, str], Reduction]
"""How much lower our KL is, by scenario, slice and whom it is compared with; and how much lower the reference's is."""


def _reductions(found: Found) -> Reductions:
    reductions = {}
    for (scenario, other, slice_), theirs in found.items():
        ours = found[scenario, OURS, slice_]
        if other == REFERENCE:
            reductions[scenario, slice_, other] = relative_reduction(theirs, ours)
        elif other != OURS:
            reductions[scenario, slice_, other] = relative_reduction(ours, theirs)
    return reductions


def _figures(results: Results, reductions: Reductions) -> Iterator[tuple[str, float | str]]:
    for (scenario, student, slice_), seeds in results.found.items():
        for head, kl in enumerate(np.mean([sums.mean() for sums in seeds], axis=0)):
            yield f"{scenario}, {slice_}, {student}, KL of head {head}", float(kl)
    for (scenario, slice_, other), reduction in reductions.items():
        lower, higher = (other, OURS) if other == REFERENCE else (OURS, other)
        yield f"{scenario}, {slice_}: KL of {lower} below {higher}", str(reduction)
    for name, seconds in results.seconds.items():
        yield f"iteration of {name}, s", float(np.mean(seconds))


def _targets(results: Results, reductions: Reductions) -> Iterator[Target]:
    for (scenario, slice_, other), reduction in reductions.items():
        if other != REFERENCE and scenario != REAL:
            name = f"{scenario}, {slice_}: KL of {OURS} below {other}"
            yield Target(name, reduction.value, at_least=LEAST_REDUCTION)
    separate = np.mean([results.seconds[scenario] for scenario in SCENARIOS])
    yield Target(
        "time of an iteration, of one scenario's model over the joint one's",
        float(separate / np.mean(results.seconds[JOINT])),
        at_most=MOST_OF_THE_TIME,
    )


def _print_table(found: Found, reductions: Reductions) -> None:
    """KL times 10,000, summed over heads; the last columns say how much lower ours is."""
    students = (OURS, PLAIN, JOINT, REFERENCE)
    table = Table("scenario", "slice", *students, "below plain MLP", "below multi-domain", box=None)
    for scenario, slice_ in dict.fromkeys((scenario, slice_) for scenario, _, slice_ in found):
        of_students = (found.get((scenario, student, slice_)) for student in students)
        means = (f"{np.mean([s.mean().sum() for s in sums]) * 1e4:.2f}" if sums else "" for sums in of_students)
        below = (str(reductions.get((scenario, slice_, other), "")) for other in (PLAIN, JOINT))
        table.add_row(scenario, slice_, *means, *below)
    Console(stderr=True, width=160).print(table)


if __name__ == "__main__":
    sys.exit(main())
