"""One small training run, which tests start as a process of its own in order to kill it."""

import argparse
import os
import signal
import threading
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from contracts.records import LogPaths
from contracts.schema import FeatureSchema, load_schema
from modeling.batches import Batch, ShuffledBatches, ordered_batches
from modeling.examples import encode_log
from modeling.loop import LoopConfig, TrainResult, mean_loss, train
from modeling.mlp import mlp
from modeling.tables import FeatureTables

CONFIG = LoopConfig(epochs=4, learning_rate=3e-3, checkpoint_every=3, validate_every=5, warmup_share=0.1, clip_norm=0.5)


class SmallModel(nn.Module):
    """Tables and one MLP with dropout, so that a resumed run needs the random state too."""

    def __init__(self, schema: FeatureSchema) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = FeatureTables(schema, ("query", "ad", "pair"), pool_sequences=True, learning_rate=0.05)
        width = sum(self.tables.flat_dim(side) for side in ("query", "ad", "pair"))
        self.head = mlp(width, (16,), out_dim=1, dropout=0.2)

    def loss(self, batch: Batch) -> Tensor:
        """Mean log loss of the first task."""
        found = self.tables.forward_sides(batch.sides())
        rows = (found["query"].flat[batch.request_index], found["ad"].flat[batch.ad_index], found["pair"].flat)
        logits = self.head(torch.cat(rows, dim=1))[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits, batch.labels[:, 0])


def run(log: Path, schema_file: Path, directory: Path, *, kill_at: int | None = None) -> tuple[SmallModel, TrainResult]:
    """Train, or go on; ``kill_at`` ends this process in the middle of that step of its own."""
    schema = load_schema(schema_file)
    examples = encode_log(schema, LogPaths.under(log), directory.parent / "examples", teacher=False, labels=True)
    model, steps = SmallModel(schema), 0

    def loss_fn(batch: Batch) -> Tensor:
        nonlocal steps
        if model.training:
            steps += 1
            if steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return model.loss(batch)

    def validate() -> float:
        return mean_loss(model.loss, ordered_batches(examples, pairs_per_batch=64))

    source = ShuffledBatches(examples, pairs_per_batch=12, by="request", seed=1)
    return model, train(model, source, loss_fn, config=CONFIG, run_directory=directory, validate=validate)


def _kill_in_save(directory: Path, number: int) -> None:
    """End this process while it writes its ``number``-th checkpoint."""
    seen: set[str] = set()
    while len(seen) < number:
        seen |= {path.name for path in (directory / "checkpoints").glob(".step-*.partial")}
        time.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    parser.add_argument("schema", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--kill-in-save", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.kill_in_save is not None:
        threading.Thread(target=_kill_in_save, args=(given.directory, given.kill_in_save), daemon=True).start()
    run(given.log, given.schema, given.directory, kill_at=given.kill_at)
