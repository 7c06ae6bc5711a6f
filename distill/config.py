"""How a student is distilled: its towers, the training, and what each pair, stage and head counts."""

from typing import Annotated

import msgspec
from msgspec import Meta

from contracts.errors import ConfigError
from contracts.ranges import BatchSize, Rate, Seed, Share, ShareBelowOne, Weight
from contracts.records import STAGES
from modeling.compile import Compile
from modeling.loop_config import LoopConfig
from towers.config import TwoTowerConfig

Weights = dict[str, Weight]


class DistillConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A student and its training; a run and a bundle keep it as ``config.json``.

    Args:
        towers: Sizes of both towers.
        loop: Length, rates and rhythm of training.
        table_learning_rate: Peak rate of the tables' row-wise Adagrad.
        pairs_per_batch: Pairs a batch; whole requests make it vary by those of one request.
        label_weight: What the true label of a winner counts beside the teacher where it is known, from 0, the teacher
            alone, to 1, the label alone.
        listwise_weight: Weight of the KL between the distributions over a request's candidates; 0 leaves it out.
        listwise_temperature: Of those distributions; a larger one looks further down the request's list.
        head_weights: Weight of a task's terms; 1 for a task that is not named.
        stage_weights: Factor on the weight of a pair by the furthest stage that its ad reached; 1 where not named.
        propensity_weights: Also weigh randomly explored ads by the inverse of their logged propensity.
        max_propensity_weight: Largest such weight: a few rare draws would otherwise decide everything.
        validation_share: Share of the pairs, the last by time, that is not trained on but decides when to stop.
        seed: Of initial weights and order.
        compile: Compile the towers before training: ``auto`` where the run is long enough to earn it back.

    Raises:
        ConfigError: A stage does not exist. A file or options are held to the ranges too.
    """

    towers: TwoTowerConfig
    loop: LoopConfig
    table_learning_rate: Rate
    pairs_per_batch: BatchSize
    label_weight: Share = 0.0
    listwise_weight: Weight = 0.0
    listwise_temperature: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    head_weights: Weights = {}
    stage_weights: Weights = {}
    propensity_weights: bool = False
    max_propensity_weight: Annotated[float, Meta(ge=1, le=1e9)] = 100.0
    validation_share: ShareBelowOne
    seed: Seed
    compile: Compile = "auto"

    def __post_init__(self) -> None:
        unknown = sorted(set(self.stage_weights) - set(STAGES))
        if unknown:
            raise ConfigError(f"stage_weights: expected some of {', '.join(STAGES)}, got {unknown[0]!r}")
