"""Two-tower configurations that were measured; each is a function, so that a caller can change single values of it."""

from towers.config import TowerConfig, TwoTowerConfig


def standard() -> TwoTowerConfig:
    """For standard ads."""
    return TwoTowerConfig(query=_tower(width=96), pin=_tower(width=64), head_dim=32)


def shopping() -> TwoTowerConfig:
    """For shopping ads, whose products carry more to cross: price, category and brand."""
    return TwoTowerConfig(query=_tower(width=96), pin=_tower(width=96), head_dim=32)


def _tower(*, width: int) -> TowerConfig:
    return TowerConfig(
        width=width,
        num_experts=4,
        full_rank_layers=1,
        low_rank_layers=2,
        rank=width // 8,
        hidden_dims=(width,),
        gate_hidden_dim=32,
    )
