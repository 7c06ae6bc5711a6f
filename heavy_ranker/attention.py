"""What every attention of the heavy ranker starts from."""

from torch import nn


def projections(dim: int, num_heads: int) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
    """To query, key, value and out, each ``dim`` to ``dim`` without bias, Glorot-uniform.

    Raises:
        ValueError: ``num_heads`` does not divide ``dim``.
    """
    if dim % num_heads:
        raise ValueError(f"num_heads must divide dim, got num_heads={num_heads}, dim={dim}")
    query, key, value, out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
    for linear in (query, key, value, out):
        nn.init.xavier_uniform_(linear.weight)
    return query, key, value, out
