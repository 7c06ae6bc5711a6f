"""A linear layer over request and ad whose request half is computed once for a request."""

from torch import Tensor, nn


class SplitLinear(nn.Module):
    """A linear layer over ``[request ; ad]``, in two halves that are added.

    Computes ``W [request ; ad] + b = (W_r request + b) + W_a ad``: nothing is lost, and no row repeats the first half.

    Args:
        request_dim: Width of what is known of the request.
        ad_dim: Width of what depends on the ad.
        out_dim: Width of the result.

    Example:
        >>> import torch
        >>> layer = SplitLinear(request_dim=3, ad_dim=2, out_dim=4)
        >>> layer(layer.request_part(torch.ones(5, 3)), torch.ones(5, 2)).shape
        torch.Size([5, 4])
    """

    def __init__(self, request_dim: int, ad_dim: int, out_dim: int) -> None:
        super().__init__()
        self.request_in = nn.Linear(request_dim, out_dim)
        self.ad_in = nn.Linear(ad_dim, out_dim, bias=False)
        bound = (6.0 / (request_dim + ad_dim + out_dim)) ** 0.5
        nn.init.uniform_(self.request_in.weight, -bound, bound)
        nn.init.uniform_(self.ad_in.weight, -bound, bound)
        nn.init.zeros_(self.request_in.bias)

    def request_part(self, request: Tensor) -> Tensor:
        """``[..., out_dim]`` from ``[..., request_dim]``."""
        return self.request_in(request)

    def forward(self, request_part: Tensor, ad: Tensor) -> Tensor:
        """``[..., out_dim]`` from the request's half and ``[..., ad_dim]``; the two broadcast."""
        return request_part + self.ad_in(ad)
