"""HyFormer as it is exported: in the first mixer, what depends on the request alone is computed once for a request."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heavy_ranker.backbones.hyformer import HyFormer, layer_state
from heavy_ranker.backbones.protocol import RequestState, Sequences
from heavy_ranker.norm import EPSILON
from heavy_ranker.ranker import HeavyRanker
from heavy_ranker.rows import EvenRows
from heavy_ranker.token_mixer import TokenMixer, mix, revert

REQUEST_PARTS = ("layer0.gate", "layer0.up", "layer0.squares")


class SplitHyFormer(nn.Module):
    """The same function as a :class:`~heavy_ranker.backbones.hyformer.HyFormer`, with fewer products for each ad.

    Before the first mixer the request's tokens are the same for all of its ads. With ``P = [P_r ; P_a]`` a mixed
    token's slices of the request's tokens and of all others, n their number together, and likewise for ``up``::

        gate(RMSNorm(P)) = (P_r gate_r + P_a gate_a) / sqrt((|P_r|^2 + |P_a|^2) / n + 1e-6)

    so ``P_r gate_r`` and ``|P_r|^2`` come from the request stage. Since ``revert`` undoes ``mix``, the residual is the
    tokens themselves, and the request's are never mixed for an ad.

    Args:
        hyformer: The trained backbone, whose first mixer's norm over mixed tokens has a gain of one.
        request_tokens: Tokens of the request.
    """

    def __init__(self, hyformer: HyFormer, request_tokens: int) -> None:
        super().__init__()
        self.hyformer = hyformer
        self.num_queries, self.request_tokens = hyformer.generation.num_queries, request_tokens
        self.out_dim = hyformer.out_dim
        layer = self._mixer.mixed_layer
        self.request_gate, self.gate = self._halves(layer.gate)
        self.request_up, self.up = self._halves(layer.up)

    @property
    def _mixer(self) -> TokenMixer:
        return self.hyformer.layers[0].mixer

    def _halves(self, weight: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
        """A layer's weights for the request's slices and for all others, of ``[H, N * T / H, hidden]``."""
        by_token = weight.detach().unflatten(1, (self._mixer.token_norm.gain.shape[0], -1))
        end = self.num_queries + self.request_tokens
        others = torch.cat([by_token[:, : self.num_queries], by_token[:, end:]], dim=1)
        request = by_token[:, self.num_queries : end]
        return nn.Parameter(request.flatten(1, 2).contiguous()), nn.Parameter(others.flatten(1, 2).contiguous())

    def encode_request(self, tokens: Tensor, events: Sequences) -> RequestState:
        mixed = mix(tokens, self._mixer.num_slices)
        parts = (mixed @ self.request_gate, mixed @ self.request_up, mixed.square().sum(-1, keepdim=True))
        own = {name: part.transpose(0, 1) for name, part in zip(REQUEST_PARTS, parts, strict=True)}
        return self.hyformer.encode_request(tokens, events) | own

    def forward(self, state: RequestState, rows: EvenRows, ad_tokens: Tensor) -> Tensor:
        first, *others = self.hyformer.layers
        queries = self.hyformer.generation(rows.repeat(state["generation"]), ad_tokens)
        own = first.decode(torch.cat([queries, ad_tokens]), rows, layer_state(state, 0))
        request_tokens = rows.repeat(state["tokens"]).transpose(0, 1)
        tokens = torch.cat([own[: self.num_queries], request_tokens, own[self.num_queries :]])
        mixed = tokens + revert(self._mixed_layer(mix(own, self._mixer.num_slices), state, rows), len(tokens))
        tokens = tokens + self._mixer.token_layer(self._mixer.token_norm(mixed))
        for index, layer in enumerate(others, start=1):
            tokens = layer(tokens, rows, layer_state(state, index))
        return tokens.transpose(0, 1).flatten(1)

    def _mixed_layer(self, mixed: Tensor, state: RequestState, rows: EvenRows) -> Tensor:
        """What the first gated layer adds to all mixed tokens ``[H, B, N * T / H]``, from slices not the request's."""
        gate, up, squares = (state[name].transpose(0, 1).unsqueeze(2) for name in REQUEST_PARTS)  # [H, R, 1, ...]
        squares = rows.group(mixed.square().sum(-1, keepdim=True)) + squares
        width = self.request_gate.shape[1] + self.gate.shape[1]
        scale = torch.rsqrt(squares / width + EPSILON)
        gate = (rows.group(torch.bmm(mixed, self.gate)) + gate) * scale
        up = (rows.group(torch.bmm(mixed, self.up)) + up) * scale
        return torch.bmm(rows.ungroup(F.silu(gate) * up), self._mixer.mixed_layer.down)


def with_split_mixers(ranker: HeavyRanker) -> HeavyRanker:
    """The ranker, each HyFormer in it replaced by its :class:`SplitHyFormer`; changes what it is given.

    Args:
        ranker: As :func:`~heavy_ranker.export_graphs.with_gains_folded` gives it.
    """
    for parent, name, hyformer in list(_hyformers(ranker)):
        setattr(parent, name, SplitHyFormer(hyformer, ranker.request_tokens.num_tokens))
    return ranker


def _hyformers(ranker: HeavyRanker) -> Iterator[tuple[nn.Module, str, HyFormer]]:
    for parent in ranker.modules():
        for name, child in parent.named_children():
            if isinstance(child, HyFormer):
                yield parent, name, child
