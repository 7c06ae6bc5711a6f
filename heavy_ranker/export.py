"""Exports a finished run to a sealed bundle: two graphs, weights, and the rows that prove them equal to the model."""

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from contracts.bundle import PARITY_FILE, WEIGHTS_FILE, Bundle, seal_bundle
from contracts.progress import Advance, progress
from contracts.records import LogPaths
from contracts.tensors import read_tensors
from engines.onnxruntime_cpu import OnnxRuntimeEngine
from heavy_ranker.data import read_impressions
from heavy_ranker.export_graphs import export_graphs, has_variable_lengths
from heavy_ranker.export_tables import quantise_tables, use_int8_tables
from heavy_ranker.model import HeavyModel
from heavy_ranker.run import Run
from heavy_ranker.serving import LENGTH_BUCKETS, HeavyServing
from heavy_ranker.serving_engines import ADS_GRAPH, REQUEST_GRAPH, VARIABLE_LENGTHS
from modeling.batches import Batch, gather
from modeling.examples import Examples
from modeling.profile import write_profile
from modeling.run import EXAMPLES
from modeling.saved_requests import write_saved_requests
from modeling.weights import model_weights

PARITY_ROWS, TABLE_ROWS = 512, 4096
"""Rows that every load compares, and those that rounded tables are judged by, once."""

Tables = Literal["fp32", "int8"]


def export_heavy(
    run: Run, log: LogPaths, out: Path, *, examples: Examples | None = None, tables: Tables = "fp32"
) -> Bundle:
    """Seal a bundle at ``out``, after its graphs have been compared with the model on real rows.

    Args:
        run: A finished run.
        log: The log trained on: its impressions of the run's time window give the rows that are compared, the saved
            requests and the profile.
        out: Directory to create.
        examples: These impressions, where they are read already.
        tables: ``int8`` keeps tables in a quarter of the memory. ``run.model`` then holds the rounded tables, which the
            parity rows are computed with, and the bundle's metrics tell what rounding changed.

    Raises:
        ArtifactError: A graph gives other probabilities than the model, or rounded tables change them too much; nothing
            is left behind.
        InputError: ``out`` exists.
    """
    if examples is None:
        window = {"start": run.summary.start, "end": run.summary.end}
        examples = read_impressions(run.schema, log, run.path / EXAMPLES, **window)
    rows = examples
    metrics, weights = dict(run.summary.metrics), model_weights(run.model)
    if tables == "int8":
        weights = quantise_tables(weights)
        batch = gather(rows, _spread(len(rows), TABLE_ROWS))
        metrics |= use_int8_tables(run.model, weights, batch, run.schema.tasks).to_metrics()
    model = run.config.model
    dims = {"token_dim": model.token_dim, "num_tasks": len(run.schema.tasks)}
    return seal_bundle(
        out,
        kind="heavy",
        scenario=None,
        schema=run.schema,
        config=msgspec.to_builtins(run.config),
        dims=dims | {VARIABLE_LENGTHS: int(has_variable_lengths(model))},
        watermark=run.summary.watermark,
        metrics=metrics,
        fill=lambda directory: write_model(run, weights, rows, directory),
    )


def write_model(run: Run, weights: dict[str, Tensor], examples: Examples, directory: Path) -> None:
    """Write all that a bundle serves from, then compare the graphs with the model as serving will run them."""
    with progress("Exporting the heavy ranker", total=3, unit="steps") as advance:
        _write_graphs(run, weights, examples, directory, advance)


def _write_graphs(run: Run, weights: dict[str, Tensor], examples: Examples, directory: Path, advance: Advance) -> None:
    advance(0, note="graphs and programs")
    batch = gather(examples, _spread(len(examples), PARITY_ROWS))
    variable_lengths = has_variable_lengths(run.config.model)
    save_file(weights, directory / WEIGHTS_FILE)
    with torch.no_grad():
        looked_up = run.model.tables.forward_sides(batch.sides())
    pair_flat = looked_up["pair"].flat if "pair" in looked_up else None
    export_graphs(
        run.model.ranker,
        looked_up["query"],
        looked_up["ad"].flat,
        pair_flat,
        directory,
        variable_lengths=variable_lengths,
    )
    advance(1)
    advance(0, note="parity rows, saved requests and feature profile")
    save_file(parity_tensors(run.model, batch), directory / PARITY_FILE)
    write_saved_requests(run.schema, examples, directory)
    write_profile(run.schema, examples, directory)
    advance(1)
    advance(0, note="comparing the graphs with the model")
    serving = HeavyServing(
        run.schema,
        {name: value.numpy() for name, value in weights.items()},
        request_engine=OnnxRuntimeEngine(directory / REQUEST_GRAPH, threads=1),
        ads_engine=OnnxRuntimeEngine(directory / ADS_GRAPH, threads=1),
        length_buckets=LENGTH_BUCKETS if variable_lengths else (),
    )
    serving.check_parity(read_tensors(directory / PARITY_FILE), source=str(directory / PARITY_FILE))
    advance(1, note="compared with the model")


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
