"""Configurations that were tried. A preset is a function; what it returns is changed by a file or by options."""

import msgspec

from heavy_ranker.config import HeavyConfig, ModelConfig
from modeling.loop_config import LoopConfig


def small() -> HeavyConfig:
    """Trains in a minute on two cores, for demos, tests and logs of some hundred thousand impressions."""
    return HeavyConfig(
        model=ModelConfig(
            token_dim=32,
            query_tokens=5,
            ad_tokens=4,
            queries_per_sequence=1,
            query_hidden_dim=64,
            num_layers=1,
            num_heads=4,
            sequence_expansion=2,
            num_slices=4,
            mixer_expansion=2,
            shared_experts=2,
            task_experts=1,
            expert_dim=64,
            head_dims=(32,),
        ),
        loop=LoopConfig(epochs=3, learning_rate=1e-3, weight_decay=0.1, warmup_share=0.1, final_factor=0.02),
        table_learning_rate=0.05,
        fresh_tables=True,
        batch_size=256,
        validation_share=0.1,
        seed=0,
    )


def medium() -> HeavyConfig:
    """The best found for a real log of some hundred thousand impressions; trains in a few minutes on two cores.

    Against :func:`small`: dense values in bins, four members, and tables that start small, so that an id seen for the
    first time when serving adds little noise. How long to train was chosen on validation rows
    (docs/results/heavy-real-log.md); it then trains on all rows.
    """
    return HeavyConfig(
        model=msgspec.structs.replace(small().model, numeric_bins=8, members=4),
        loop=LoopConfig(epochs=2, learning_rate=2e-3, weight_decay=0.1, warmup_share=0.1, final_factor=0.02),
        table_learning_rate=0.05,
        table_init="rows",
        fresh_tables=True,
        batch_size=512,
        validation_share=0.0,
        seed=0,
    )


def iqiyi(num_layers: int = 1) -> HeavyConfig:
    """The sizes of a published CVR model with HyFormer blocks: 13 tokens and, for each sequence, one query token.

    Six tokens of the query, six of the ad and one of the pair, in groups of near equal widths where the schema has no
    labels; fewer where it offers fewer. With three sequences of 50 events one layer costs 60 to 70 MFLOPs an ad when
    nothing is shared. Token width, tokens, decoded tokens, length, experts and depth are published. The expansions are
    not: the encoder's is larger than the mixer's, since it runs once for a request and the mixer for each ad.

    Args:
        num_layers: HyFormer layers.
    """
    return HeavyConfig(
        model=ModelConfig(
            token_dim=128,
            query_tokens=6,
            ad_tokens=6,
            queries_per_sequence=1,
            query_source="one_token",
            query_hidden_dim=256,
            num_layers=num_layers,
            num_heads=4,
            sequence_expansion=3,
            num_slices=16,
            mixer_expansion=2,
            shared_experts=3,
            task_experts=0,
            expert_dim=128,
            head_dims=(64,),
        ),
        loop=LoopConfig(
            epochs=3, learning_rate=1e-3, weight_decay=0.1, warmup_share=0.1, final_factor=0.02, precision="auto"
        ),
        table_learning_rate=0.05,
        fresh_tables=True,
        batch_size=1024,
        validation_share=0.1,
        seed=0,
    )


PRESETS = {"small": small, "medium": medium, "iqiyi": iqiyi}
