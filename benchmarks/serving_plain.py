"""The light stage without this project's code: what a good team writes behind Ray Serve or PyTriton.

msgspec, a dict from id to row, the exported query tower in ONNX Runtime, NumPy look-ups, one gather of the same
vectors, a partition. Reads the plain files that ``serving_world`` writes beside a store: ``spec.json`` (where each
feature of a query stands), ``tables``, ``query_tower.onnx``, ``ids.txt``, and by row ``vectors.npy`` [A, H * D],
``bias.npy`` [A, H] and ``heads.npy`` [A], the head that an ad's objective pays for. Needs numpy, msgspec, xxhash and
onnxruntime.

Shapes: A ads, C candidates, H heads, D width of a head's vector.
"""

from bisect import bisect_right
from datetime import datetime
from math import copysign, log1p
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import xxhash

MISSING, RESERVED = 1, 3
ANSWERED = 100


class QueryEncoder:
    """Raw features of one request to ids and floats, value by value."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec

    def __call__(self, query: dict[str, Any], event_time_us: int) -> tuple[np.ndarray, np.ndarray]:
        """int32 [num_ids] and float32 [num_floats]."""
        ids, floats = [0] * self.spec["num_ids"], [0.0] * self.spec["num_floats"]
        for column in self.spec["dense"]:
            value = query.get(column["name"])
            value = column["default"] if value is None else value
            floats[column["start"]] = copysign(log1p(abs(value)), value)
        for column in self.spec["bags"]:
            self._bag(column, query.get(column["name"]), ids)
        for sequence in self.spec["sequences"]:
            events = query.get(sequence["name"]) or {}
            for field in sequence["fields"]:
                self._events(field, events.get(field["name"]), event_time_us, ids)
        return np.array(ids, np.int32), np.array(floats, np.float32)

    def _bag(self, column: dict[str, Any], value: Any, ids: list[int]) -> None:
        if value is None:
            ids[column["start"]] = MISSING
            return
        values = value[: column["width"]] if isinstance(value, list) else [value]
        for place, text in enumerate(values, column["start"]):
            ids[place] = _hashed(text, column["rows"])

    def _events(self, field: dict[str, Any], values: list[Any] | None, now_us: int, ids: list[int]) -> None:
        """Most recent first."""
        recent = (values or [])[: -field["width"] - 1 : -1]
        for place, value in enumerate(recent, field["start"]):
            if field["edges_us"] is None:
                ids[place] = _hashed(value, field["rows"])
            else:
                ids[place] = bisect_right(field["edges_us"], now_us - value * 1000) + RESERVED


class PlainRanker:
    """Answers the bytes of a body with the bytes of an answer.

    Args:
        directory: Holds the plain files.
        threads: Of ONNX Runtime.
    """

    def __init__(self, directory: Path, *, threads: int = 1) -> None:
        self.spec = msgspec.json.decode((directory / "spec.json").read_bytes())
        self.encode = QueryEncoder(self.spec)
        used = {column["table"] for column in self._id_columns()}
        self.tables = {name: np.load(directory / "tables" / f"{name}.npy") for name in used}
        self.rows = {ad_id: row for row, ad_id in enumerate((directory / "ids.txt").read_text().split("\n"))}
        self.vectors = np.load(directory / "vectors.npy").astype(np.float32)
        self.bias, self.heads = np.load(directory / "bias.npy"), np.load(directory / "heads.npy")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.tower = onnxruntime.InferenceSession(directory / "query_tower.onnx", options)

    def rank(self, body: bytes) -> bytes:
        """The best ``ANSWERED`` candidates, equal ones in the order of the request."""
        request = msgspec.json.decode(body)
        places, utilities, probabilities = self.score(request)
        kept = best(utilities, ANSWERED)
        ids = request["candidates"]["ids"]
        light = {task: probabilities[kept, head].tolist() for head, task in enumerate(self.spec["tasks"])}
        chosen = [ids[place] for place in places[kept].tolist()]
        return msgspec.json.encode({"ads": {"ids": chosen, "utilities": utilities[kept].tolist(), "light": light}})

    def score(self, request: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Places of the candidates that are known, with their utilities and probabilities [., H]."""
        found = list(map(self.rows.get, request["candidates"]["ids"]))
        places = np.array([place for place, row in enumerate(found) if row is not None])
        rows = np.array([row for row in found if row is not None])
        embedding = self.embed(request)
        logits = self._logits(rows, embedding)
        probabilities = 1 / (1 + np.exp(-logits))
        bids = np.array(request["candidates"]["bids"])[places]
        return places, bids * probabilities[np.arange(len(rows)), self.heads[rows]], probabilities

    def embed(self, request: dict[str, Any]) -> np.ndarray:
        """The query embedding [H, D+2]."""
        moment = int(datetime.fromisoformat(request["event_time"]).timestamp() * 1e6)
        return self.embed_encoded(*self.encode(request["query"], moment))

    def embed_encoded(self, ids: np.ndarray, floats: np.ndarray) -> np.ndarray:
        """Look-ups, means, tower."""
        parts = [floats, *(self._pooled(ids, column) for column in self._id_columns())]
        return self.tower.run(None, {"flat": np.concatenate(parts)[None]})[0][0]

    def _id_columns(self) -> list[dict[str, Any]]:
        return [*self.spec["bags"], *(field for sequence in self.spec["sequences"] for field in sequence["fields"])]

    def _pooled(self, ids: np.ndarray, column: dict[str, Any]) -> np.ndarray:
        own = ids[column["start"] : column["start"] + column["width"]]
        own = own[own != 0]
        table = self.tables[column["table"]]
        return table[own].mean(axis=0) if len(own) else np.zeros(table.shape[1], np.float32)

    def _logits(self, rows: np.ndarray, embedding: np.ndarray) -> np.ndarray:
        heads, dim = embedding.shape[0], embedding.shape[1] - 2
        vectors = self.vectors[rows].reshape(len(rows), heads, dim)
        logits = np.einsum("chd,hd->ch", vectors, embedding[:, :dim])
        return logits + self.bias[rows] * embedding[:, dim] + embedding[:, dim + 1]


def best(utilities: np.ndarray, count: int) -> np.ndarray:
    """Positions of the largest, best first, equal ones in the order in which they stand."""
    if count >= len(utilities):
        return np.argsort(-utilities, kind="stable")
    threshold = np.partition(utilities, -count)[-count]
    kept = np.flatnonzero(utilities >= threshold)
    return kept[np.argsort(-utilities[kept], kind="stable")[:count]]


def _hashed(value: Any, buckets: int) -> int:
    if value is None:
        return MISSING
    return RESERVED + xxhash.xxh64_intdigest(str(value).encode()) % (buckets - RESERVED)
