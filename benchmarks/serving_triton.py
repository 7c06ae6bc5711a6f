"""The light stage behind PyTriton: ``python -m benchmarks.serving_triton PLAIN PORT COUNT``, in its own environment.

A body goes in as it is, as the only element of a tensor of bytes (Triton's raw binary requests), and so comes the
answer. PyTriton runs its instances as threads of one process. Imports nothing of this project but ``serving_plain``.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.serving_plain import PlainRanker

Infer = Callable[[list[Any]], list[dict[str, np.ndarray]]]


def instance(plain: Path) -> Infer:
    """One instance of the model."""
    ranker = PlainRanker(plain)

    def infer(requests: list[Any]) -> list[dict[str, np.ndarray]]:
        return [{"answer": np.array([ranker.rank(request["request"][0])], np.object_)} for request in requests]

    return infer


def main(plain: str, port: str, instances: str) -> None:
    """Serve until interrupted; gRPC and metrics take the ports behind."""
    first = int(port)
    config = TritonConfig(http_address="127.0.0.1", http_port=first, grpc_port=first + 1, metrics_port=first + 2)
    with Triton(config=config) as triton:
        triton.bind(
            model_name="rank",
            infer_func=[instance(Path(plain)) for _ in range(int(instances))],
            inputs=[Tensor(name="request", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="answer", dtype=bytes, shape=(1,))],
            config=ModelConfig(batching=False),
        )
        triton.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
