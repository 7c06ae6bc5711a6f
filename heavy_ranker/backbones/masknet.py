"""MaskNet: every layer's input is scaled, element by element, by a mask made of all tokens of the row."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heavy_ranker.backbones.protocol import RequestState, Sequences
from heavy_ranker.backbones.target_attention import AttendedSequences
from heavy_ranker.rows import Rows
from heavy_ranker.split_linear import SplitLinear
from modeling.mlp import glorot_linear


class MaskBlock(nn.Module):
    """One instance-guided mask and the layer behind it.

    Computes ``relu(LayerNorm(W (x * mask)))`` with ``mask = W_2 relu(W_1 e + b_1) + b_2``, where e are all tokens of
    the row; ``W_1 e`` has a half that is computed once for a request.

    Source: Wang et al. 2021, "MaskNet", arXiv:2102.07619.

    Args:
        request_dim: Width of the request's tokens, concatenated.
        ad_dim: Width of all that depends on the ad, concatenated.
        mask_dim: Hidden width of the mask's network.
        in_dim: Width of x.
        out_dim: Width of the result.
    """

    def __init__(self, request_dim: int, ad_dim: int, mask_dim: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.mask_in = SplitLinear(request_dim, ad_dim, mask_dim)
        self.mask_out = glorot_linear(mask_dim, in_dim)
        nn.init.ones_(self.mask_out.bias)
        self.linear = glorot_linear(in_dim, out_dim, bias=False)
        self.norm = nn.LayerNorm(out_dim)

    def forward(self, x: Tensor, request_part: Tensor, ad_side: Tensor) -> Tensor:
        """``[B, out_dim]`` from ``x [B, in_dim]``, the mask's request half ``[B, mask_dim]`` and ``[B, ad_dim]``."""
        mask = self.mask_out(F.relu(self.mask_in(request_part, ad_side)))
        return F.relu(self.norm(self.linear(x * mask)))


class MaskNet(nn.Module):
    """Mask blocks in series: the first reads the normalised tokens, each later one the block before.

    Every block's mask reads all tokens: those of request and ad, and the sequences as the ad reads them.

    Source: Wang et al. 2021, "MaskNet", arXiv:2102.07619, serial form. A mask starts around one.

    Args:
        behaviour: The sequences as the ad reads them.
        blocks: First to last.
        token_dim: Width of a token, T.
        out_dim: Width of the last block's result.
    """

    def __init__(self, behaviour: AttendedSequences, blocks: Sequence[MaskBlock], token_dim: int, out_dim: int) -> None:
        super().__init__()
        self.behaviour = behaviour
        self.norm = nn.LayerNorm(token_dim)
        self.blocks = nn.ModuleList(blocks)
        self.out_dim = out_dim

    def encode_request(self, tokens: Tensor, events: Sequences) -> RequestState:
        tokens = tokens.transpose(0, 1)
        masks = {f"mask{at}": block.mask_in.request_part(tokens.flatten(1)) for at, block in enumerate(self.blocks)}
        return {"normed": self.norm(tokens).flatten(1)} | masks | self.behaviour.encode_request(events)

    def forward(self, state: RequestState, rows: Rows, ad_tokens: Tensor) -> Tensor:
        ad_tokens = ad_tokens.transpose(0, 1)
        attended = self.behaviour(state, rows, ad_tokens.flatten(1))
        ad_side = torch.cat([ad_tokens, *(token.unsqueeze(1) for token in attended)], dim=1)  # [B, N, T]
        x = torch.cat([rows.repeat(state["normed"]), self.norm(ad_side).flatten(1)], dim=1)
        for at, block in enumerate(self.blocks):
            x = block(x, rows.repeat(state[f"mask{at}"]), ad_side.flatten(1))
        return x
