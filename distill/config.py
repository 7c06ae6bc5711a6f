"""How a student is distilled: its towers, the training, and what each pair, stage and head counts."""

import msgspec

from contracts.errors import ConfigError
from contracts.records import STAGES
from modeling.loop_config import LoopConfig
from towers.config import TwoTowerConfig


class DistillConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A student and its training; a run and a bundle keep it as ``config.json``.

    Args:
        towers: Sizes of both towers.
        loop: Length, rates and rhythm of training.
        table_learning_rate: Peak rate of the tables' row-wise Adagrad.
        pairs_per_batch: Pairs a batch; whole requests make it vary by those of one request.
        head_weights: Weight of a task's KL; 1 for a task that is not named.
        stage_weights: Factor on the weight of a pair by the furthest stage that its ad reached; 1 where not named.
        propensity_weights: Also weigh randomly explored ads by the inverse of their logged propensity.
        max_propensity_weight: Largest such weight: a few rare draws would otherwise decide everything.
        validation_share: Share of the pairs, the last by time, that is not trained on but decides when to stop.
        seed: Of initial weights and order.

    Raises:
        ConfigError: A share or weight is out of range, or a stage does not exist.
    """

    towers: TwoTowerConfig
    loop: LoopConfig
    table_learning_rate: float
    pairs_per_batch: int
    head_weights: dict[str, float] = {}
    stage_weights: dict[str, float] = {}
    propensity_weights: bool = False
    max_propensity_weight: float = 100.0
    validation_share: float
    seed: int

    def __post_init__(self) -> None:
        for name, weights in (("head_weights", self.head_weights), ("stage_weights", self.stage_weights)):
            for key, value in weights.items():
                if value < 0:
                    raise ConfigError(f"{name}.{key}: expected a number of at least 0, got {value}")
        unknown = sorted(set(self.stage_weights) - set(STAGES))
        if unknown:
            raise ConfigError(f"stage_weights: expected some of {', '.join(STAGES)}, got {unknown[0]!r}")
        if not 0.0 <= self.validation_share < 1.0:
            raise ConfigError(f"validation_share: expected a number in [0, 1), got {self.validation_share}")
