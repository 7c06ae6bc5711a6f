"""A mixture of experts for several domains (scenarios) at once, and what is left of it for one of them.

Beside the experts that all domains share, each domain has experts of its own; the gate of a head knows the domain and
mixes both kinds. With d the domain of a row:

    x0    = LayerNorm(W flat + s_d)
    gate  = softmax(W2 relu(W1 x0 + b1 + t_d) + b2)       over shared experts, then those of d
    y_h   = sum_x gate_h(x0, d)_x * expert_x(x0)

Source: in the spirit of Pinterest's multi-task multi-domain two-tower (arXiv:2510.09857), which has shared,
domain-specific and task-specific experts and a module that moves knowledge between them. Its equations are not public:
experts as in ``mmoe``, the shifts ``s_d`` and ``t_d``, and gates in place of task-specific experts are ours.

Shapes: B rows, D width of the crossed vector, X experts that a row sees, M domains, H heads.
"""

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor, nn

from towers.config import TowerConfig, TwoTowerConfig
from towers.mmoe import Gate, Mmoe
from towers.tower import Tower
from towers.two_tower import TwoTower


class DomainStem(nn.Module):
    """Projects the flat input and adds a vector of the domain: ``LayerNorm(W flat + b + s_d)``.

    Args:
        linear: From the flat width to D.
        num_domains: M.
    """

    def __init__(self, linear: nn.Linear, num_domains: int) -> None:
        super().__init__()
        self.linear = linear
        self.shift = nn.Parameter(torch.zeros(num_domains, linear.out_features))
        self.norm = nn.LayerNorm(linear.out_features)

    def forward(self, flat: Tensor, domain: Tensor) -> Tensor:
        """[B, F] and domains [B] to [B, D]."""
        return self.norm(self.linear(flat) + self.shift.index_select(0, domain))

    def fold(self, domain: int) -> nn.Module:
        """The same for rows of one domain."""
        return nn.Sequential(_shifted(self.linear, self.shift[domain]), self.norm)


class DomainGate(nn.Module):
    """An MLP gate that knows the domain: ``softmax(W2 relu(W1 x + b1 + t_d) + b2)``.

    Args:
        gate: W1, b1, W2 and b2.
        num_domains: M.
    """

    def __init__(self, gate: Gate, num_domains: int) -> None:
        super().__init__()
        self.gate = gate
        self.shift = nn.Parameter(0.1 * torch.randn(num_domains, gate.hidden.out_features))

    def forward(self, x: Tensor, domain: Tensor) -> Tensor:
        """Weights [B, X] that sum to 1 for ``x`` [B, D] of domains [B]."""
        hidden = self.gate.hidden(x) + self.shift.index_select(0, domain)
        return torch.softmax(self.gate.out(torch.relu(hidden)), dim=-1)

    def fold(self, domain: int) -> Gate:
        """The same for rows of one domain."""
        return self.gate.with_hidden(_shifted(self.gate.hidden, self.shift[domain]))


class MultiDomainMmoe(nn.Module):
    """Shared experts and those of a row's own domain, mixed by one gate a head.

    An expert of a domain computes the rows of that domain alone.

    Args:
        shared: Experts of all domains, modules from [B, D] to [B, D].
        own: Experts of each domain, the same number for all M.
        gates: H gates over shared and own experts.
    """

    def __init__(
        self, shared: Sequence[nn.Module], own: Sequence[Sequence[nn.Module]], gates: Sequence[DomainGate]
    ) -> None:
        super().__init__()
        self.shared = nn.ModuleList(shared)
        self.own = nn.ModuleList(nn.ModuleList(experts) for experts in own)
        self.gates = nn.ModuleList(gates)

    def forward(self, x0: Tensor, domain: Tensor) -> Tensor:
        """Mix the experts for each head: [B, D] with domains [B] to [B, H, D]."""
        outputs = [expert(x0) for expert in self.shared]
        if len(self.own[0]):
            outputs += self._own_outputs(x0, domain)
        weights = torch.stack([gate(x0, domain) for gate in self.gates], dim=1)  # [B, H, X]
        return torch.matmul(weights, torch.stack(outputs, dim=1))

    def _own_outputs(self, x0: Tensor, domain: Tensor) -> list[Tensor]:
        """What the experts of each row's domain give, [B, D] for each: rows are sorted by domain, and put back."""
        order = torch.argsort(domain, stable=True)
        counts = torch.bincount(domain, minlength=len(self.own)).tolist()
        groups = list(zip(self.own, x0.index_select(0, order).split(counts), strict=True))
        back = torch.argsort(order)
        found = (torch.cat([experts[at](rows) for experts, rows in groups]) for at in range(len(self.own[0])))
        return [sorted_outputs.index_select(0, back) for sorted_outputs in found]

    def fold(self, domain: int) -> Mmoe:
        """The same for rows of one domain: an ordinary mixture of its experts."""
        return Mmoe([*self.shared, *self.own[domain]], [gate.fold(domain) for gate in self.gates])


def fold_domain(model: TwoTower, domain: int) -> TwoTower:
    """A two-tower of one domain alone, with the weights of ``model``: the domain has become a constant.

    It is what a two-tower of one scenario is built of, and takes flat inputs without domains.

    Raises:
        TypeError: The model has no domains.
    """
    return TwoTower(
        tables=model.tables,
        query_tower=_folded_tower(model.query_tower, domain),
        pin_tower=_folded_tower(model.pin_tower, domain),
    ).train(model.training)


def fold_config(config: TwoTowerConfig) -> TwoTowerConfig:
    """The configuration of what :func:`fold_domain` gives."""
    return msgspec.structs.replace(config, query=_own_config(config.query), pin=_own_config(config.pin), domains=())


def _own_config(tower: TowerConfig) -> TowerConfig:
    experts = tower.num_experts + tower.domain_experts
    return msgspec.structs.replace(tower, num_experts=experts, domain_experts=0)


@torch.no_grad()
def _folded_tower(tower: Tower, domain: int) -> Tower:
    stem, mixture = tower.stem, tower.mixture
    if not isinstance(stem, DomainStem) or not isinstance(mixture, MultiDomainMmoe):
        raise TypeError(f"expected a tower with domains, got one of {type(stem).__name__}, {type(mixture).__name__}")
    return Tower(stem=stem.fold(domain), mixture=mixture.fold(domain), heads=tower.heads)


def _shifted(linear: nn.Linear, shift: Tensor) -> nn.Linear:
    """The linear layer with ``shift`` added to its bias."""
    folded = nn.Linear(linear.in_features, linear.out_features, device=linear.weight.device)
    folded.weight.copy_(linear.weight)
    folded.bias.copy_(linear.bias + shift)
    return folded
