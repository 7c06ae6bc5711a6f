"""Plain feed-forward stacks with Glorot-uniform weights.

Shapes: B rows.
"""

from collections.abc import Callable, Sequence

from torch import nn


def glorot_linear(in_dim: int, out_dim: int, *, bias: bool = True) -> nn.Linear:
    """A linear layer with Glorot-uniform weights and a zero bias.

    Weights are uniform in ``+-sqrt(6 / (in_dim + out_dim))``, which keeps the variance of activations and gradients
    level through a stack.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks".
    """
    layer = nn.Linear(in_dim, out_dim, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(
    in_dim: int,
    hidden_dims: Sequence[int],
    *,
    out_dim: int | None = None,
    dropout: float = 0.0,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Linear layers, each hidden one followed by its activation and dropout.

    Args:
        in_dim: Width of the input [B, in_dim].
        hidden_dims: Widths of the hidden layers, possibly none.
        out_dim: Width of a last linear layer without activation; None ends with the last hidden layer.
        dropout: Share of hidden units dropped while training; no layer for it at 0.
        activation: Makes the activation of one hidden layer.

    Example:
        >>> import torch
        >>> mlp(8, (16, 4), out_dim=1)(torch.ones(3, 8)).shape
        torch.Size([3, 1])
    """
    layers: list[nn.Module] = []
    for hidden_dim in hidden_dims:
        layers += [glorot_linear(in_dim, hidden_dim), activation()]
        if dropout > 0.0:
            layers.append(nn.Dropout(dropout))
        in_dim = hidden_dim
    if out_dim is not None:
        layers.append(glorot_linear(in_dim, out_dim))
    return nn.Sequential(*layers)
