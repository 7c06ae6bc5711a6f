"""Pairs of a log with what the teacher and the served student say of them.

Shapes: N pairs, R requests, A ads, H heads, D width of a head's vector.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from contracts.encoding import Encoded
from contracts.progress import progress
from contracts.schema import FeatureSchema
from modeling.examples import Examples
from towers.serving import TwoTowerServing

_ROWS_AT_ONCE = 4_096
_PAIRS_AT_ONCE = 65_536
_DEFAULT_OBJECTIVE = "click"


@dataclass(frozen=True, kw_only=True)
class ScoredPairs:
    """Pairs of one scenario.

    Args:
        tasks: Names of the heads, H.
        request: int32 [N], which request a pair belongs to.
        stage: int8 [N], positions in ``contracts.records.STAGES``.
        teacher: float64 [N, H] logits.
        student: float64 [N, H] logits.
        labels: float32 [N, H], NaN where unknown.
        weight: float64 [N], how many pairs of the real traffic one stands for.
        bid: float64 [N], NaN where there is none.
        pays_for: int [N], the head that the pair's objective pays for; H for the impression itself.
    """

    tasks: tuple[str, ...]
    request: np.ndarray
    stage: np.ndarray
    teacher: np.ndarray
    student: np.ndarray
    labels: np.ndarray
    weight: np.ndarray
    bid: np.ndarray
    pays_for: np.ndarray

    def __len__(self) -> int:
        return len(self.request)


def score_pairs(schema: FeatureSchema, serving: TwoTowerServing, examples: Examples) -> ScoredPairs:
    """Let the serving engine of a bundle score every pair of the examples."""
    return paired(schema, examples, embed_requests(serving, examples), embed_pins(serving, examples))


def embed_requests(serving: TwoTowerServing, examples: Examples) -> np.ndarray:
    """Query embeddings [R, H, D+2] of the examples' requests."""
    return _in_pieces(serving.embed_query, examples.query, "Embedding requests")


def embed_pins(serving: TwoTowerServing, examples: Examples) -> np.ndarray:
    """Pin embeddings [A, H, D+2] of the examples' ads."""
    return _in_pieces(serving.embed_ads, examples.ad, "Embedding ads")


def paired(schema: FeatureSchema, examples: Examples, query: np.ndarray, pins: np.ndarray) -> ScoredPairs:
    """Every pair of the examples with its score.

    Args:
        schema: Whose heads the embeddings are of.
        query: [R, H, D+2].
        pins: [A, H, D+2].
    """
    return ScoredPairs(
        tasks=schema.tasks,
        request=np.asarray(examples.request_row),
        stage=np.asarray(examples.stage),
        teacher=np.asarray(examples.teacher, np.float64),
        student=_dot(query, pins, examples.request_row, examples.ad_row),
        labels=np.asarray(examples.labels),
        weight=np.asarray(examples.weight, np.float64),
        bid=np.asarray(examples.bid, np.float64),
        pays_for=_pays_for(schema, examples.objective),
    )


def _in_pieces(embed: Callable[[Encoded], np.ndarray], rows: Encoded, title: str) -> np.ndarray:
    pieces = []
    with progress(title, total=len(rows)) as advance:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            pieces.append(embed(rows.take(np.arange(start, min(start + _ROWS_AT_ONCE, len(rows))))))
            advance(len(pieces[-1]))
    return np.concatenate(pieces)


def _dot(query: np.ndarray, pins: np.ndarray, request_row: np.ndarray, ad_row: np.ndarray) -> np.ndarray:
    """Logits [N, H] of pairs from embeddings [R, H, D+2] and [A, H, D+2]."""
    logits = np.empty((len(request_row), query.shape[1]), np.float64)
    for start in range(0, len(logits), _PAIRS_AT_ONCE):
        here = slice(start, start + _PAIRS_AT_ONCE)
        logits[here] = np.einsum("nhd,nhd->nh", query[request_row[here]], pins[ad_row[here]])
    return logits


def _pays_for(schema: FeatureSchema, objective: np.ndarray) -> np.ndarray:
    """Heads of objective codes [N]; a pair that names no objective pays for the click, or else for the first task."""
    heads = {task: head for head, task in enumerate(schema.tasks)} | {None: len(schema.tasks)}
    names = schema.objective_names
    default = heads[schema.objectives[_DEFAULT_OBJECTIVE]] if _DEFAULT_OBJECTIVE in names else 0
    by_code = np.array([*(heads[schema.objectives[name]] for name in names), default])  # code -1 is the last
    return by_code[np.asarray(objective)]
