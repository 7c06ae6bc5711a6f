"""One tower. Query and pin tower are two instances of this class.

Shapes: B rows, F width of the flat input, D width of the crossed vector, H heads, E width of an embedding.
"""

from torch import Tensor, nn


class Tower(nn.Module):
    """Flat features of one side to one embedding a head.

    Embedding look-up and pooling happen before it, so that the exported graph takes one dense matrix.

    Args:
        stem: Projects [B, F] to [B, D].
        mixture: Refines [B, D] to one representation a head, [B, H, D]. Where the model serves several domains, stem
            and mixture also take the domain of each row [B].
        heads: Projects representations [B, H, D] to embeddings [B, H, E].
    """

    def __init__(self, *, stem: nn.Module, mixture: nn.Module, heads: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.mixture = mixture
        self.heads = heads

    def forward(self, flat: Tensor, domain: Tensor | None = None) -> Tensor:
        """Embed ``flat`` [B, F]; returns [B, H, E].

        Args:
            flat: Dense features and pooled embeddings of each row.
            domain: Number of each row's domain, int64 [B]; for a tower with domains, and for no other.
        """
        if domain is None:
            return self.heads(self.mixture(self.stem(flat)))
        return self.heads(self.mixture(self.stem(flat, domain), domain))
