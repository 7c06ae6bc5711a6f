"""The light stage behind Ray Serve: ``python -m benchmarks.serving_ray PLAIN PORT REPLICAS``, in its own environment.

Imports nothing of this project but ``serving_plain``.
"""

import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.serving_plain import PlainRanker

QUEUE = 16
OBJECT_STORE_BYTES = 100 << 20


class Ranker:
    """One replica."""

    def __init__(self, plain: str) -> None:
        self._ranker = PlainRanker(Path(plain))

    async def __call__(self, request: Request) -> Response:
        return Response(self._ranker.rank(await request.body()), media_type="application/json")


def main(plain: str, port: str, replicas: str) -> None:
    """Serve until interrupted."""
    ray.init(num_cpus=int(replicas), include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    deployment: Any = serve.deployment(
        Ranker, num_replicas=int(replicas), max_ongoing_requests=QUEUE, ray_actor_options={"num_cpus": 1}
    )
    serve.run(deployment.bind(plain), route_prefix="/rank")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
