"""Examples a second of ``adsieve heavy train`` with one process of two threads, and with two of one under torchrun."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.harness import Target
from benchmarks.our_training import seconds
from contracts.config import dump_yaml
from heavy_ranker.presets import iqiyi
from modeling.run import SUMMARY_FILE

DAY = ("2025-03-05T00:00:00Z", "2025-03-06T00:00:00Z")
"""A day of the log: 16,000 winners, so that a short run has several epochs."""
EPOCHS = (1, 5)
"""The longer run minus the shorter: what starting, reading and ending take falls out."""
CORES = 2


def processes(directory: Path) -> tuple[dict[str, Any], list[Target]]:
    """One process against two, the command line as it is used; batches of the preset's size over all processes."""
    rates = {count: _rate(directory, count) for count in (1, 2)}
    figures = {f"heavy train, {n} process{'es' * (n > 1)}, examples/s": rate for n, rate in rates.items()}
    return figures | {"two processes to one": rates[2] / rates[1]}, []


def _rate(directory: Path, count: int) -> float:
    with TemporaryDirectory(prefix="adsieve-processes-") as temporary:
        short, long = (seconds(lambda: _train(directory, Path(temporary), count, epochs)) for epochs in EPOCHS)  # noqa: B023
        return _examples(Path(temporary) / f"run-{EPOCHS[0]}") * (EPOCHS[1] - EPOCHS[0]) / (long - short)


def _train(directory: Path, temporary: Path, count: int, epochs: int) -> None:
    config = iqiyi()
    loop = msgspec.structs.replace(config.loop, epochs=epochs, precision="auto")
    dump_yaml(msgspec.structs.replace(config, loop=loop, validation_share=0.0), temporary / f"config-{epochs}.yaml")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command += ["-m", "--", "adsieve", "heavy", "train", "--logs", str(directory / "log")]
    command += ["--schema", str(directory / "schema.yaml"), "--config", str(temporary / f"config-{epochs}.yaml")]
    command += ["--out", str(temporary / f"run-{epochs}"), "--from", DAY[0], "--until", DAY[1]]
    threads = str(max(1, CORES // count))
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": threads})


def _examples(run: Path) -> int:
    """Examples of one epoch, as the run says of itself."""
    return int(msgspec.json.decode((run / SUMMARY_FILE).read_bytes())["impressions"])
