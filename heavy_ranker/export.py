"""Exports a finished run to a sealed bundle: two graphs, weights, and the rows that prove them equal to the model."""

from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from contracts.bundle import PARITY_FILE, WEIGHTS_FILE, Bundle, seal_bundle
from contracts.records import LogPaths
from contracts.tensors import read_tensors
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from heavy_ranker.data import read_impressions
from heavy_ranker.model import HeavyModel
from heavy_ranker.ranker import HeavyRanker
from heavy_ranker.rows import EvenRows
from heavy_ranker.run import Run
from heavy_ranker.serving import ADS_GRAPH, EVENTS, MASK, REQUEST_GRAPH, HeavyServing
from modeling.batches import Batch, gather
from modeling.examples import Examples
from modeling.onnx_export import export
from modeling.profile import write_profile
from modeling.run import EXAMPLES
from modeling.saved_requests import write_saved_requests
from modeling.weights import model_weights

PARITY_ROWS = 512
ADS_PER_REQUEST = 2
"""Of the example that the exporter traces; any number serves."""


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


def export_heavy(run: Run, log: LogPaths, out: Path, *, examples: Examples | None = None) -> Bundle:
    """Seal a bundle at ``out``, after its graphs have been compared with the model on real rows.

    Args:
        run: A finished run.
        log: The log trained on: its impressions of the run's time window give the rows that are compared, the saved
            requests and the profile.
        out: Directory to create.
        examples: These impressions, where they are read already.

    Raises:
        ArtifactError: A graph gives other probabilities than the model; nothing is left behind.
        InputError: ``out`` exists.
    """
    if examples is None:
        window = {"start": run.summary.start, "end": run.summary.end}
        examples = read_impressions(run.schema, log, run.path / EXAMPLES, **window)
    rows = examples
    return seal_bundle(
        out,
        kind="heavy",
        scenario=None,
        schema=run.schema,
        config=msgspec.to_builtins(run.config),
        dims={"token_dim": run.config.model.token_dim, "num_tasks": len(run.schema.tasks)},
        watermark=run.summary.watermark,
        metrics=run.summary.metrics,
        fill=lambda directory: write_model(run, rows, directory),
    )


def write_model(run: Run, examples: Examples, directory: Path) -> None:
    """Write all that a bundle serves from, then compare the graphs with the model as serving will run them."""
    batch = gather(examples, _spread(len(examples), PARITY_ROWS))
    weights = model_weights(run.model)
    save_file(weights, directory / WEIGHTS_FILE)
    export_graphs(run.model, batch, directory)
    save_file(parity_tensors(run.model, batch), directory / PARITY_FILE)
    write_saved_requests(run.schema, examples, directory)
    write_profile(run.schema, examples, directory)
    serving = HeavyServing(
        run.schema,
        {name: value.numpy() for name, value in weights.items()},
        request_engine=OnnxRuntimeEngine(directory / REQUEST_GRAPH, threads=1),
        ads_engine=OnnxRuntimeEngine(directory / ADS_GRAPH, threads=1),
    )
    serving.check_parity(read_tensors(directory / PARITY_FILE), source=str(directory / PARITY_FILE))


@torch.no_grad()
def export_graphs(model: HeavyModel, batch: Batch, directory: Path) -> None:
    """Write ``request.onnx`` and ``ads.onnx``, for any number of requests and of rows."""
    inputs = model.tables.forward_sides(batch.sides())
    query = {"flat": inputs["query"].flat}
    for name in model.ranker.sequence_names:
        events, mask = inputs["query"].sequences[name]
        query |= {f"{name}{EVENTS}": events, f"{name}{MASK}": mask.float()}
    state = model.encode_request(inputs["query"])
    export(
        RequestGraph(model.ranker),
        query,
        directory / REQUEST_GRAPH,
        dynamic={name: {0: "requests"} for name in query},
        output_names=list(state),
    )
    num_requests = len(batch.query.ids)
    place = torch.arange(num_requests * ADS_PER_REQUEST)
    rows = {"ad_flat": inputs["ad"].flat[place % len(batch.ad.ids)].unflatten(0, (num_requests, ADS_PER_REQUEST))}
    if "pair" in inputs:
        rows["pair_flat"] = inputs["pair"].flat[place % len(batch)].unflatten(0, (num_requests, ADS_PER_REQUEST))
    export(
        AdsGraph(model.ranker, tuple(state)),
        state | rows,
        directory / ADS_GRAPH,
        dynamic={name: {0: "requests"} for name in state} | {name: {0: "requests", 1: "ads"} for name in rows},
        output_names=["logits"],
    )


@torch.no_grad()
def parity_tensors(model: HeavyModel, batch: Batch) -> dict[str, Tensor]:
    """Encoded rows and the module's fp32 probabilities for them, as ``parity.safetensors`` holds them."""
    logits = model(batch.sides(), batch.request_index, batch.ad_index)
    ads = batch.ad_index
    tensors = {
        "in.query_ids": batch.query.ids,
        "in.query_floats": batch.query.floats,
        "in.ad_ids": batch.ad.ids[ads],
        "in.ad_floats": batch.ad.floats[ads],
        "in.request_index": batch.request_index,
        "out.probabilities": torch.sigmoid(logits),
    }
    if batch.pair is not None:
        tensors |= {"in.pair_ids": batch.pair.ids, "in.pair_floats": batch.pair.floats}
    return tensors


def _spread(count: int, wanted: int) -> np.ndarray:
    """At most ``wanted`` positions, evenly over all, so that the rows come from many requests."""
    return np.unique(np.linspace(0, count - 1, wanted).astype(np.int64))
