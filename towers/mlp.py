"""What stands in a conventional tower where others have their mixture of experts.

Shapes: B rows, D width of the stem, T width of the last hidden layer, H heads.
"""

from torch import Tensor, nn


class SharedRepresentation(nn.Module):
    """Gives every head the same representation: ``y_h = hidden(x0)``.

    Source: Covington et al. 2016, "Deep Neural Networks for YouTube Recommendations": towers of ReLU layers; the heads
    on one shared last layer are the shared-bottom model that Ma et al. 2018 compare MMOE with.

    Args:
        hidden: Maps [B, D] to [B, T].
        num_heads: H.
    """

    def __init__(self, hidden: nn.Module, num_heads: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.num_heads = num_heads

    def forward(self, x0: Tensor) -> Tensor:
        """[B, D] to [B, H, T], without a copy for each head."""
        return self.hidden(x0)[:, None].expand(-1, self.num_heads, -1)
