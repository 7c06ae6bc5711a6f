"""Two-tower configurations that were measured; each is a function, so that a caller can change single values of it."""

from towers.config import TowerConfig, TwoTowerConfig


def standard() -> TwoTowerConfig:
    """For standard ads."""
    return TwoTowerConfig(query=_tower(width=96), pin=_tower(width=64), head_dim=32)


def shopping() -> TwoTowerConfig:
    """For shopping ads, whose products carry more to cross: price, category and brand."""
    return TwoTowerConfig(query=_tower(width=96), pin=_tower(width=96), head_dim=32)


def plain_mlp() -> TwoTowerConfig:
    """The conventional two-tower of one scenario, to compare with: about as many parameters and FLOPs as the others."""
    return TwoTowerConfig(query=_mlp_tower(width=216), pin=_mlp_tower(width=176), head_dim=32)


def multi_domain(domains: tuple[str, ...] = ("standard", "shopping")) -> TwoTowerConfig:
    """One two-tower for several scenarios, to compare with: half of each one's experts are shared by all."""
    tower = _tower(width=96, num_experts=2, domain_experts=2)
    return TwoTowerConfig(query=tower, pin=tower, head_dim=32, domains=domains)


def _tower(*, width: int, num_experts: int = 4, domain_experts: int = 0) -> TowerConfig:
    return TowerConfig(
        width=width,
        num_experts=num_experts,
        domain_experts=domain_experts,
        full_rank_layers=1,
        low_rank_layers=2,
        rank=width // 8,
        hidden_dims=(width,),
        gate_hidden_dim=32,
    )


def _mlp_tower(*, width: int) -> TowerConfig:
    return TowerConfig(kind="mlp", width=width, hidden_dims=(width, width))
