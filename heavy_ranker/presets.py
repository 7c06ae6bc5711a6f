"""Configurations that were tried. A preset is a function; what it returns is changed by a file or by options."""

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


PRESETS = {"small": small}
