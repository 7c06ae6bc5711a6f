"""What a ranker costs: floating-point operations of its matrix products, a multiply-add counted as two.

Look-ups, norms and activations are not counted; they move memory rather than compute.
"""

from collections.abc import Callable

import msgspec
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from contracts.layout import SideLayout, side_layout
from contracts.schema import FeatureSchema
from heavy_ranker.ranker import HeavyRanker
from heavy_ranker.rows import EvenRows


class Flops(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of a forward pass.

    Args:
        alone: One ad with nothing shared: the request stage and the ad's.
        request: The request stage, once for any number of ads.
        ad: Each ad of the request.
    """

    alone: int
    request: int
    ad: int

    def __str__(self) -> str:
        alone, request, ad = (f"{value / 1e6:.1f}" for value in (self.alone, self.request, self.ad))
        return f"{alone} MFLOPs an ad when nothing is shared; {request} a request and {ad} each of its ads"


@torch.no_grad()
def count_flops(ranker: HeavyRanker, schema: FeatureSchema) -> Flops:
    """Count by running one request with one ad and with two.

    Args:
        ranker: On any device; sequences count at their full length.
        schema: What the ranker was built from.
    """
    device = next(ranker.parameters()).device
    layouts = {side: side_layout(schema, side) for side in ("query", "ad", "pair")}
    flat, sequences = _flat(layouts["query"], 1, device), _sequences(layouts["query"], device)
    request = _counted(lambda: ranker.encode_request(flat, sequences))
    state = ranker.encode_request(flat, sequences)

    def score(ads: int) -> int:
        inputs = [_flat(layouts["ad"], ads, device)]
        if ranker.pair_tokens is not None:
            inputs.append(_flat(layouts["pair"], ads, device))
        return _counted(lambda: ranker.score_ads(state, EvenRows(1, ads), *inputs))

    one = score(1)
    return Flops(alone=request + one, request=request, ad=score(2) - one)


def _counted(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def _flat(layout: SideLayout, rows: int, device: torch.device) -> Tensor:
    return torch.zeros(rows, layout.flat_dim(pool_sequences=False), device=device)


def _sequences(layout: SideLayout, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    return {
        sequence.name: (
            torch.zeros(1, sequence.max_length, sequence.dim, device=device),
            torch.ones(1, sequence.max_length, device=device),
        )
        for sequence in layout.sequences
    }
