"""The heavy ranker's two stages as ONNX graphs and as programs, for any number of requests, ads and, mostly, events.

Shapes: R requests, C ads of each, L events, F flat features, K tasks.
"""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from engines.names import program_path
from engines.torch_program_writer import write_program
from heavy_ranker.backbones.protocol import RequestState
from heavy_ranker.config import ModelConfig
from heavy_ranker.export_split import with_split_mixers
from heavy_ranker.ranker import HeavyRanker
from heavy_ranker.rows import EvenRows
from heavy_ranker.serving import EVENTS, MASK
from heavy_ranker.serving_engines import ADS_GRAPH, LENGTH_SUFFIX, REQUEST_GRAPH
from heavy_ranker.split_mixer import SplitMixer
from heavy_ranker.token_mixer import TokenMixer
from modeling.lookups import SideInputs
from modeling.onnx_export import export

EXAMPLE_REQUESTS, EXAMPLE_ADS = 2, 3
"""Of the example that the exporter traces; any numbers above one serve."""
REQUESTS, ADS = "requests", "ads"


class RequestGraph(nn.Module):
    """The request stage with positional inputs: ``flat``, then events and mask of each sequence."""

    def __init__(self, ranker: HeavyRanker) -> None:
        super().__init__()
        self.ranker = ranker

    def forward(self, flat: Tensor, *sequences: Tensor) -> tuple[Tensor, ...]:
        pairs = zip(sequences[::2], sequences[1::2], strict=True)
        state = self.ranker.encode_request(flat, dict(zip(self.ranker.sequence_names, pairs, strict=True)))
        return tuple(state.values())


class AdsGraph(nn.Module):
    """The ads' stage with positional inputs: the state of R requests, then ``ad_flat`` and ``pair_flat``.

    Features are ``[R, C, F]`` and logits ``[R, C, K]``: every request has C ads, so the graph repeats by shape alone.

    Args:
        ranker: The trained ranker.
        state_names: Names of the state's tensors in the order of the inputs.
    """

    def __init__(self, ranker: HeavyRanker, state_names: tuple[str, ...]) -> None:
        super().__init__()
        self.ranker = ranker
        self.state_names = state_names

    def forward(self, *inputs: Tensor) -> Tensor:
        count = len(self.state_names)
        state = dict(zip(self.state_names, inputs[:count], strict=True))
        requests, width = inputs[count].shape[:2]
        flat = [features.flatten(0, 1) for features in inputs[count:]]
        return self.ranker.score_ads(state, EvenRows(requests, width), *flat).unflatten(0, (requests, width))


def with_gains_folded(ranker: HeavyRanker) -> HeavyRanker:
    """A copy of the ranker whose mixers' norms have a gain of one, and the gain in the weights that read it.

    ``(x * g) W = x (diag(g) W)``, so nothing changes but rounding. A norm whose gain is one in every place is a single
    operation to graph engines, one with a gain a token is four that each read and write all tokens. The mixer inside a
    :class:`SplitMixer` stays: others read what its norm gives, too.
    """
    folded = copy.deepcopy(ranker)
    shared = [module.request for module in folded.modules() if isinstance(module, SplitMixer)]
    for module in folded.modules():
        if isinstance(module, TokenMixer) and module not in shared:
            for norm, layer in ((module.mixed_norm, module.mixed_layer), (module.token_norm, module.token_layer)):
                gain = norm.gain.data.transpose(1, 2)
                layer.gate.data, layer.up.data = layer.gate.data * gain, layer.up.data * gain
                norm.gain.data = torch.ones_like(norm.gain.data)
    return folded


def has_variable_lengths(config: ModelConfig) -> bool:
    """Whether the request graph takes sequences of any length: every encoder treats events alike wherever they stand.

    One that merges neighbours or keeps the latest (``longer``) takes the length that it was built for.
    """
    return "longer" not in {config.sequence_encoder, *config.sequence_encoders.values()}


@torch.no_grad()
def export_graphs(
    ranker: HeavyRanker,
    query: SideInputs,
    ad_flat: Tensor,
    pair_flat: Tensor | None,
    directory: Path,
    *,
    variable_lengths: bool,
) -> None:
    """Write ``request.onnx`` and ``ads.onnx``, and beside each its twin for engines that run torch programs.

    Args:
        ranker: The trained ranker.
        query: Looked-up features of a few requests, for the shapes alone.
        ad_flat: The ad side's flat features of a few ads ``[A, F]``.
        pair_flat: The pair's, if the schema has any.
        directory: Where to write.
        variable_lengths: Sequences may be cut; see :func:`has_variable_lengths`.
    """
    ranker = with_split_mixers(with_gains_folded(ranker))
    inputs = request_example(ranker, query)
    lengths = {name: f"{name}{LENGTH_SUFFIX}" for name in ranker.sequence_names} if variable_lengths else {}
    graph = RequestGraph(ranker)
    names = list(_state(ranker, inputs))
    state = dict(zip(names, graph(*inputs.values()), strict=True))
    _write(graph, inputs, directory / REQUEST_GRAPH, {name: _axes(name, lengths) for name in inputs}, names)
    rows = {"ad_flat": _example_rows(ad_flat)} | ({} if pair_flat is None else {"pair_flat": _example_rows(pair_flat)})
    axes = state_axes(ranker, inputs, lengths) | {name: {0: REQUESTS, 1: ADS} for name in rows}
    _write(AdsGraph(ranker, tuple(names)), state | rows, directory / ADS_GRAPH, axes, ["logits"])


def _write(
    graph: nn.Module, inputs: dict[str, Tensor], path: Path, axes: dict[str, dict[int, str]], outputs: list[str]
) -> None:
    program = export(graph, inputs, path, dynamic=axes, output_names=outputs)
    write_program(program, program_path(path), input_names=list(inputs), output_names=outputs, dynamic=axes)


def request_example(ranker: HeavyRanker, query: SideInputs) -> dict[str, Tensor]:
    """Inputs of the request graph for ``EXAMPLE_REQUESTS`` requests."""
    chosen = torch.arange(EXAMPLE_REQUESTS) % len(query.flat)
    inputs = {"flat": query.flat[chosen]}
    for name in ranker.sequence_names:
        events, mask = query.sequences[name]
        inputs |= {f"{name}{EVENTS}": events[chosen], f"{name}{MASK}": mask[chosen].float()}
    return inputs


def state_axes(ranker: HeavyRanker, inputs: dict[str, Tensor], lengths: dict[str, str]) -> dict[str, dict[int, str]]:
    """Which axes of which state tensors vary: requests, and those that follow the length of a sequence.

    The latter are found by cutting one sequence and looking what changes, so a backbone need not declare them.
    """
    whole = _state(ranker, inputs)
    axes = {name: {0: REQUESTS} for name in whole}
    for sequence, length in lengths.items():
        mask = inputs[f"{sequence}{MASK}"]
        cut = {f"{sequence}{part}": inputs[f"{sequence}{part}"][:, : mask.shape[1] - 1] for part in (EVENTS, MASK)}
        for name, values in _state(ranker, inputs | cut).items():
            axes[name] |= {at: length for at, size in enumerate(values.shape) if size != whole[name].shape[at]}
    return axes


def _state(ranker: HeavyRanker, inputs: dict[str, Tensor]) -> RequestState:
    events = {name: (inputs[f"{name}{EVENTS}"], inputs[f"{name}{MASK}"]) for name in ranker.sequence_names}
    return ranker.encode_request(inputs["flat"], events)


def _axes(name: str, lengths: dict[str, str]) -> dict[int, str]:
    sequence = name.removesuffix(EVENTS).removesuffix(MASK)
    return {0: REQUESTS} | ({1: lengths[sequence]} if sequence != name and sequence in lengths else {})


def _example_rows(flat: Tensor) -> Tensor:
    chosen = torch.arange(EXAMPLE_REQUESTS * EXAMPLE_ADS) % len(flat)
    return flat[chosen].unflatten(0, (EXAMPLE_REQUESTS, EXAMPLE_ADS))
