"""How far a student may fall behind the one that serves, and what it has to reach by itself."""

from typing import Annotated

import msgspec
from msgspec import Meta

from contracts.errors import ConfigError
from distill.recall import SURVIVORS

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Excess = Annotated[float, Meta(ge=0.0, le=1e6)]


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the launch gate. A limit that is null is not judged.

    Args:
        min_rows: Least number of pairs of a slice that counts.
        min_requests: Least number of requests of a slice, or of whole pools, that count; ten at least, of fewer there
            is no interval.
        confidence: Chance that an equally good student passes all comparisons with the one that serves: their paired
            intervals are widened by how many figures are judged at once.
        kl_rise: Most that KL from the teacher may rise on a slice, relative to the student that serves.
        auc_fall: Most that AUC may fall on a slice, against the teacher and against labels.
        gauc_fall: Most that AUC within a request may fall on a slice.
        calibration_off: A slice's predictions may be off by a factor of 1 plus this, either way; further off only
            where the student that serves was no better.
        recall_fall: Most that recall of the heavy top ads may fall.
        survivors: Number of survivors at which recall is judged.
        max_kl: Floor of every head on each whole stage: KL from the teacher at most.
        max_normalised_entropy: Floor: cross entropy with the teacher, over that of always predicting its mean, at most.
        min_auc: Floor: AUC against the teacher at least.
        max_calibration_off: Floor: predictions off by a factor of 1 plus this at most, either way.
        min_recall: Floor: recall of the heavy top ads among the survivors at least.
    """

    min_rows: Annotated[int, Meta(ge=1)] = 1_000
    min_requests: Annotated[int, Meta(ge=10)] = 50
    confidence: Annotated[float, Meta(ge=0.5, lt=1.0)] = 0.95
    kl_rise: Excess | None = 0.05
    auc_fall: Share | None = 0.005
    gauc_fall: Share | None = 0.005
    calibration_off: Excess | None = 0.1
    recall_fall: Share | None = 0.01
    survivors: Annotated[int, Meta(ge=1)] = 100
    max_kl: Excess | None = None
    max_normalised_entropy: Excess | None = 1.05
    min_auc: Share | None = 0.5
    max_calibration_off: Excess | None = 0.5
    min_recall: Share | None = 0.5

    def __post_init__(self) -> None:
        if self.survivors not in SURVIVORS:
            known = ", ".join(map(str, SURVIVORS))
            raise ConfigError(f"survivors: expected one of {known}, got {self.survivors}")
