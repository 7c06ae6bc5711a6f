"""A mixture for several domains against its formula row by row, and what is left of it for one domain."""

from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from contracts.errors import ConfigError
from contracts.schema import FeatureSchema
from modeling.tables import dense_parameters
from towers import presets
from towers.build import build_two_tower
from towers.config import TowerConfig, TwoTowerConfig
from towers.multi_domain import MultiDomainMmoe, fold_config, fold_domain
from towers.two_tower import TwoTower

DOMAINS = ("standard", "shopping", "video")


@pytest.fixture(scope="module")
def config() -> TwoTowerConfig:
    return TwoTowerConfig(query=_tower(16, own=2), pin=_tower(12, own=1), head_dim=6, domains=DOMAINS)


def _tower(width: int, *, own: int) -> TowerConfig:
    return TowerConfig(
        width=width,
        num_experts=2,
        domain_experts=own,
        full_rank_layers=1,
        low_rank_layers=1,
        rank=3,
        hidden_dims=(8,),
        gate_hidden_dim=4,
        dropout=0.2,
    )


@pytest.fixture(scope="module")
def model(schema: FeatureSchema, config: TwoTowerConfig) -> TwoTower:
    model = build_two_tower(schema, config, seed=2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in dense_parameters(model).values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _logits(model: TwoTower, rows: Any, domains: tuple[Tensor, Tensor] | None) -> Tensor:
    pairs = torch.arange(35)
    return model(rows.tensors("query"), rows.tensors("ad"), pairs // 7, pairs % 7, domains)


def _linear(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    return layer.weight @ x + layer.bias


def test_a_row_is_mixed_by_the_experts_and_gates_of_its_own_domain(model: TwoTower) -> None:
    tower = model.query_tower
    stem, mixture = tower.stem, tower.mixture
    flat = torch.randn(6, stem.linear.in_features, generator=torch.Generator().manual_seed(1))
    domain = torch.tensor([2, 0, 1, 0, 2, 2])
    mixed = mixture(stem(flat, domain), domain)
    for row, d in enumerate(domain.tolist()):
        x0 = torch.nn.functional.layer_norm(_linear(stem.linear, flat[row]) + stem.shift[d], (16,), *_affine(stem.norm))
        outputs = torch.stack([expert(x0[None])[0] for expert in [*mixture.shared, *mixture.own[d]]])
        for head, gate in enumerate(mixture.gates):
            hidden = torch.relu(_linear(gate.gate.hidden, x0) + gate.shift[d])
            weights = torch.softmax(_linear(gate.gate.out, hidden), dim=0)
            torch.testing.assert_close(mixed[row, head], weights @ outputs)


def _affine(norm: torch.nn.LayerNorm) -> tuple[Tensor, Tensor]:
    return norm.weight, norm.bias


def test_an_expert_of_a_domain_learns_from_its_own_rows_alone(model: TwoTower) -> None:
    mixture = model.query_tower.mixture
    x0 = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    mixture(x0, torch.tensor([1, 1, 0, 1])).square().sum().backward()
    gradients = [[p.grad.abs().sum() for expert in own for p in expert.parameters()] for own in mixture.own]
    shared = [p.grad for expert in mixture.shared for p in expert.parameters()]
    for parameter in mixture.parameters():
        parameter.grad = None
    assert all(total > 0 for total in [*gradients[0], *gradients[1]])
    assert all(total == 0 for total in gradients[2])
    assert all(gradient.abs().sum() > 0 for gradient in shared)


@pytest.mark.parametrize("domain", [0, 1, 2])
def test_folded_model_equals_the_model_at_that_domain(model: TwoTower, rows: Any, domain: int) -> None:
    numbers = torch.full((5,), domain), torch.full((7,), domain)
    expected = _logits(model, rows, numbers)
    torch.testing.assert_close(_logits(fold_domain(model, domain), rows, None), expected)
    others = _logits(model, rows, (torch.full((5,), (domain + 1) % 3), numbers[1]))
    assert (others - expected).abs().max() > 0.01


def test_folded_model_is_what_its_configuration_builds(
    model: TwoTower, config: TwoTowerConfig, schema: FeatureSchema
) -> None:
    folded, built = fold_domain(model, 1), build_two_tower(schema, fold_config(config))
    assert fold_config(config).domains == ()
    assert {n: p.shape for n, p in folded.state_dict().items()} == {n: p.shape for n, p in built.state_dict().items()}


def test_domains_that_share_everything_but_their_shifts(schema: FeatureSchema, rows: Any) -> None:
    tower = _tower(16, own=0)
    model = build_two_tower(schema, TwoTowerConfig(query=tower, pin=tower, head_dim=6, domains=DOMAINS)).eval()
    mixed = _logits(model, rows, (torch.tensor([0, 1, 2, 1, 0]), torch.zeros(7, dtype=torch.int64)))
    alone = _logits(fold_domain(model, 0), rows, None)
    assert isinstance(model.pin_tower.mixture, MultiDomainMmoe)
    torch.testing.assert_close(mixed.reshape(5, 7, 2)[[0, 4]], alone.reshape(5, 7, 2)[[0, 4]])
    assert not torch.allclose(mixed, alone)


def test_every_dense_weight_is_trained(schema: FeatureSchema, config: TwoTowerConfig, rows: Any) -> None:
    model = build_two_tower(schema, config)
    domains = torch.tensor([0, 1, 2, 1, 0]), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    _logits(model, rows, domains).square().sum().backward()
    assert all(p.grad is not None for p in dense_parameters(model).values())


def test_a_model_of_one_scenario_has_no_domain_to_fold(schema: FeatureSchema) -> None:
    single = fold_config(presets.multi_domain())
    with pytest.raises(TypeError, match="expected a tower with domains, got one of Sequential, Mmoe"):
        fold_domain(build_two_tower(schema, single), 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domains": ("a",)}, "domains: expected none, or two and more that differ, got \\['a'\\]"),
        ({"domains": ("a", "b", "a")}, "domains: expected none, or two and more that differ"),
        ({"domains": ()}, "query.domain_experts: expected 0 without domains, got 2"),
        ({"pin": presets.plain_mlp().pin}, "pin.kind: expected mmoe_dcn with domains, got mlp"),
    ],
)
def test_domains_that_do_not_fit_are_refused(config: TwoTowerConfig, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        msgspec.structs.replace(config, **changes)
