"""Dense values in pieces: what lets the first layer be any piecewise linear function of a value, as trees are steps."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from contracts.layout import SideLayout


class PiecewiseLinear(nn.Module):
    """Append to a flat input how far each dense value has come through each of several bins.

    Computes ``clamp((x - edge_j) / width, 0, 1)`` for the bins j that divide -1..1 evenly. That is the range of a
    quantile transform, whose bins then hold equally many values; what lies outside keeps its own column, and that
    column stays as it was.

    Source: Gorishniy et al. 2022, "On Embeddings for Numerical Features in Tabular Deep Learning", arXiv:2203.05556,
    section 3.1.

    Args:
        columns: Of the flat input, those that hold dense values.
        in_dim: Width of the flat input, F.
        num_bins: Bins of each value.

    Example:
        >>> PiecewiseLinear([0], in_dim=2, num_bins=2)(torch.tensor([[0.5, 7.0]])).tolist()
        [[0.5, 7.0, 1.0, 0.5]]
    """

    def __init__(self, columns: Sequence[int], in_dim: int, num_bins: int) -> None:
        super().__init__()
        self.values, self.in_dim, self.num_bins = tuple(columns), in_dim, num_bins
        self.out_dim = in_dim + len(self.values) * num_bins
        self.register_buffer("at", torch.tensor(self.values), persistent=False)
        self.register_buffer("edges", torch.arange(num_bins) * (2.0 / num_bins) - 1.0, persistent=False)

    def forward(self, flat: Tensor) -> Tensor:
        """``[B, out_dim]`` of flat features ``[B, F]``: these, then the bins of each value, value by value."""
        through = (flat.index_select(1, self.at).unsqueeze(2) - self.edges) * (self.num_bins / 2.0)
        return torch.cat([flat, through.clamp(0.0, 1.0).flatten(1)], dim=1)

    def sources(self) -> list[tuple[int, int]]:
        """The column of the value, and the bin, of each appended column."""
        return [(column, place) for column in self.values for place in range(self.num_bins)]

    def with_bins(self, columns: Sequence[int]) -> list[int]:
        """Some columns of the flat input, and behind them the appended ones of the dense values among them."""
        appended = [
            self.in_dim + self.values.index(column) * self.num_bins + place
            for column in columns
            if column in self.values
            for place in range(self.num_bins)
        ]
        return [*columns, *appended]


def dense_columns(layout: SideLayout) -> list[int]:
    """Columns of a side's flat input that hold dense values; the parts of an embedding are none."""
    return [column.start for column in layout.dense if column.width == 1]
