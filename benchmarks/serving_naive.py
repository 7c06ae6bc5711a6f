"""The service as an average team writes it: FastAPI, a Pydantic object a candidate, eager PyTorch, MGET from Redis.

``ADSIEVE_NAIVE=DIRECTORY,REDIS_PORT,THREADS`` names the world that ``serving_world`` made, the server that holds its
ads and the threads of PyTorch; uvicorn starts ``benchmarks.serving_naive:create_app`` with as many workers as the rest.

A key ``ad:ID`` holds an ad's vectors, biases and the head that its objective pays for, in float32; ``heavy:ID`` its
encoded features for the heavy ranker. Each request fetches them for its candidates, and for its survivors.
"""

import gc
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import redis
import torch
from fastapi import FastAPI
from pydantic import BaseModel, field_validator

from benchmarks.serving_naive_model import NaiveQueryTower, embed, heavy_probabilities, light_probabilities, naive_heavy
from benchmarks.serving_plain import ANSWERED, QueryEncoder
from benchmarks.serving_world import query_spec
from contracts.bundle import open_bundle
from contracts.encoding import Encoded

BATCH = 1000
VARIABLE = "ADSIEVE_NAIVE"


class Candidate(BaseModel):
    """An ad to rank."""

    ad_id: str
    bid: float


class RankRequest(BaseModel):
    """The same body that all systems get; its columns become objects, which the code behind is written with."""

    scenario: str
    stage: Literal["full", "light"]
    event_time: datetime
    query: dict[str, Any]
    candidates: list[Candidate]

    @field_validator("candidates", mode="before")
    @classmethod
    def to_rows(cls, columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
        """One row a candidate."""
        return [{"ad_id": ad_id, "bid": bid} for ad_id, bid in zip(columns["ids"], columns["bids"], strict=True)]


class RankedAd(BaseModel):
    """An ad of the answer."""

    ad_id: str
    utility: float
    light: dict[str, float]
    heavy: dict[str, float] | None = None


class RankResponse(BaseModel):
    """Best first."""

    ads: list[RankedAd]


def fill_redis(client: "redis.Redis", plain: Path) -> None:
    """Write the keys of every ad."""
    ids = (plain / "ids.txt").read_text().split("\n")
    vectors, bias, heads = (np.load(plain / f"{name}.npy") for name in ("vectors", "bias", "heads"))
    records = np.concatenate([vectors, bias, heads[:, None]], axis=1).astype(np.float32)
    heavy = None
    if (plain / "heavy_ids.npy").exists():
        floats = np.load(plain / "heavy_floats.npy")
        heavy = np.concatenate([np.load(plain / "heavy_ids.npy"), floats.view(np.int32)], axis=1)
    for start in range(0, len(ids), BATCH):
        pipeline = client.pipeline(transaction=False)
        for row in range(start, min(start + BATCH, len(ids))):
            pipeline.set(f"ad:{ids[row]}", records[row].tobytes())
            if heavy is not None:
                pipeline.set(f"heavy:{ids[row]}", heavy[row].tobytes())
        pipeline.execute()


class NaiveRanker:
    """Both stages, over the bundles of a world and a Redis server that was filled."""

    def __init__(self, directory: Path, client: "redis.Redis") -> None:
        tower = open_bundle(directory / "two_tower")
        self._encode, self._tower = QueryEncoder(query_spec(tower.schema)), NaiveQueryTower(tower)
        self._tasks, self._redis = tower.schema.tasks, client
        self._heavy = None
        if (directory / "heavy").exists():
            bundle = open_bundle(directory / "heavy")
            self._heavy, self._num_pair = naive_heavy(bundle), len(bundle.schema.side_features("pair"))
            self._num_ad_ids = self._encode_width(directory)

    def rank(self, request: RankRequest) -> RankResponse:
        """Light stage, survivors and, where asked, heavy stage."""
        ids, floats = self._encode(request.query, int(request.event_time.timestamp() * 1e6))
        embedding = embed(self._tower, ids, floats)
        found, records = self._fetch("ad", request.candidates)
        values = torch.from_numpy(np.frombuffer(b"".join(records), np.float32).reshape(len(records), -1).copy())
        heads = len(self._tasks)
        vectors, bias, paid = values[:, : -heads - 1], values[:, -heads - 1 : -1], values[:, -1].long()
        light = light_probabilities(embedding, vectors.contiguous(), bias)
        bids = torch.tensor([candidate.bid for candidate in found], dtype=torch.float64)
        utilities = bids * light.gather(1, paid[:, None])[:, 0]
        order = torch.argsort(utilities, descending=True, stable=True)[:ANSWERED]
        survivors = [found[place] for place in order.tolist()]
        if request.stage == "light":
            return self._answer(survivors, utilities[order], light[order], None)
        heavy = self._heavy_probabilities(survivors, ids, floats)
        final = bids[order] * heavy.gather(1, paid[order][:, None])[:, 0]
        again = torch.argsort(final, descending=True, stable=True)
        return self._answer(
            [survivors[place] for place in again.tolist()], final[again], light[order][again], heavy[again]
        )

    def _fetch(self, kind: str, candidates: list[Candidate]) -> tuple[list[Candidate], list[bytes]]:
        values = self._redis.mget([f"{kind}:{candidate.ad_id}" for candidate in candidates])
        found = zip(candidates, values, strict=True)
        pairs = [(candidate, value) for candidate, value in found if isinstance(value, bytes)]
        return [candidate for candidate, _ in pairs], [value for _, value in pairs]

    def _heavy_probabilities(self, survivors: list[Candidate], ids: np.ndarray, floats: np.ndarray) -> torch.Tensor:
        if self._heavy is None:
            raise RuntimeError("this world has no heavy ranker")
        _, records = self._fetch("heavy", survivors)
        rows = np.frombuffer(b"".join(records), np.int32).reshape(len(records), -1).copy()
        ads = Encoded(rows[:, : self._num_ad_ids].copy(), rows[:, self._num_ad_ids :].copy().view(np.float32))
        query = Encoded(ids[None], floats[None])
        return torch.from_numpy(heavy_probabilities(self._heavy, query, ads, self._num_pair))

    def _answer(
        self, ads: list[Candidate], utilities: torch.Tensor, light: torch.Tensor, heavy: torch.Tensor | None
    ) -> RankResponse:
        def by_task(values: torch.Tensor) -> dict[str, float]:
            return dict(zip(self._tasks, values.tolist(), strict=True))

        return RankResponse(
            ads=[
                RankedAd(
                    ad_id=ad.ad_id,
                    utility=utilities[place].item(),
                    light=by_task(light[place]),
                    heavy=None if heavy is None else by_task(heavy[place]),
                )
                for place, ad in enumerate(ads)
            ]
        )

    @staticmethod
    def _encode_width(directory: Path) -> int:
        return int(np.load(directory / "plain" / "heavy_ids.npy", mmap_mode="r").shape[1])


def create_app() -> FastAPI:
    """The application; each worker of uvicorn makes its own."""
    directory, port, threads = os.environ[VARIABLE].split(",")
    torch.set_num_threads(int(threads))
    ranker = NaiveRanker(Path(directory), redis.Redis(port=int(port)))
    # The modules come with training libraries whose objects a service of its own would not have: without this each full
    # collection walks them, for 220 ms.
    gc.collect()
    gc.freeze()
    app = FastAPI()

    @app.post("/rank")
    def rank(request: RankRequest) -> RankResponse:
        return ranker.rank(request)

    return app
