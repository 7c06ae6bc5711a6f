"""The pairs that the distillation benchmark learns from: a catalogue of 5,000 ads, popular ones far more often.

Requests and ads are those of the simulated world ``demo`` with the features of shopping students. Which ads a request
meets is drawn anew: 100 different ones, an ad of popularity rank r with weight ``r ** -1.1``. The teacher is a
two-tower with random weights, wider than any student, its logits scaled to those of rare events: what counts is the
time until its scores are learned, not what they mean.

Shapes: R requests, A ads, C candidates, N = R * C pairs, H heads.
"""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import torch

from adlogs.fit import fit_log, named_schema
from adlogs.simulate import simulate
from contracts.records import LogPaths
from contracts.schema import FeatureSchema, load_schema, save_schema
from modeling.examples import Examples, encode_log
from towers import presets
from towers.build import build_two_tower

ADS, CANDIDATES, ZIPF = 5_000, 100, 1.1
TEACHER_MEAN, TEACHER_DEVIATION = (-3.0, -4.5), 1.2
"""Of the teacher's logits: 6 and 2 % of impressions, about."""
_CHUNK, _PAIRS = 1_000, 100_000


def distill_log(directory: Path, *, requests: int, preset: str = "demo") -> tuple[FeatureSchema, Examples]:
    """Schema and scored pairs of the first requests; the log in ``directory`` is made where it is absent."""
    log = LogPaths.under(directory / "log")
    if not (directory / "log").exists():
        simulate(directory / "log", preset)
    if not (directory / "schema.yaml").exists():
        save_schema(fit_log(named_schema("simulated_shopping"), log, until=None), directory / "schema.yaml")
    schema = load_schema(directory / "schema.yaml")
    simulated = encode_log(schema, log, directory / "examples", teacher=False, labels=False)
    return schema, _scored(schema, _drawn(simulated, requests))


def _drawn(simulated: Examples, requests: int) -> Examples:
    """The pairs, in the order of requests, unscored."""
    generator = np.random.default_rng(0)
    requests = min(requests, len(simulated.query))
    _, newest = np.unique(np.asarray(simulated.ad_ids.to_pylist())[::-1], return_index=True)
    catalogue = generator.permutation(len(simulated.ad) - 1 - newest)[:ADS]  # an ad once, in order of popularity
    log_weights = -ZIPF * np.log(np.arange(1, len(catalogue) + 1))
    ranks = [_without_replacement(generator, log_weights, size) for size in _sizes(requests)]
    ad_row = catalogue[np.concatenate(ranks)].reshape(-1).astype(np.int32)
    count = len(ad_row)
    return replace(
        simulated,
        request_row=np.repeat(np.arange(requests, dtype=np.int32), CANDIDATES),
        ad_row=ad_row,
        stage=np.zeros(count, np.int8),
        labels=np.full((count, len(TEACHER_MEAN)), np.nan, np.float32),
        weight=np.ones(count, np.float32),
        bid=np.ones(count, np.float32),
        objective=np.zeros(count, np.int8),
        positions=simulated.positions | {"candidates": np.zeros(count, np.int64)},
    )


def _sizes(requests: int) -> list[int]:
    return [min(_CHUNK, requests - start) for start in range(0, requests, _CHUNK)]


def _without_replacement(generator: np.random.Generator, log_weights: np.ndarray, requests: int) -> np.ndarray:
    """Ranks [requests, C], all of a row different: the largest of log weights plus Gumbel noise (Kool et al. 2019)."""
    keys = log_weights + generator.gumbel(size=(requests, len(log_weights)))
    return np.argpartition(-keys, CANDIDATES, axis=1)[:, :CANDIDATES]


@torch.no_grad()
def _scored(schema: FeatureSchema, examples: Examples) -> Examples:
    sizes = presets.shopping()
    wide = msgspec.structs.replace(sizes.query, width=160, hidden_dims=(160,), rank=20)
    sizes = msgspec.structs.replace(sizes, query=wide, pin=wide, head_dim=64)
    teacher = build_two_tower(schema, sizes, seed=1_000).eval()
    query, ads = (
        (torch.tensor(side.ids), torch.tensor(side.floats))
        for side in (examples.query.take(np.arange(examples.request_row[-1] + 1)), examples.ad)
    )
    of_requests, of_ads = teacher.embed(query, ads)
    chunks = (slice(first, first + _PAIRS) for first in range(0, len(examples), _PAIRS))
    pairs = ((examples.request_row[chunk], examples.ad_row[chunk]) for chunk in chunks)
    logits = np.concatenate([(of_requests[requests] * of_ads[ads]).sum(-1).numpy() for requests, ads in pairs])
    scaled = (logits - logits.mean(0)) / logits.std(0) * TEACHER_DEVIATION + np.array(TEACHER_MEAN)
    return replace(examples, teacher=scaled.astype(np.float32))
