"""What towers and heavy rankers compute, in plain loops over the files of a bundle; nothing of the service is used.

The graphs are those of ``sealing``. Shapes: A ads, H heads, D width of a head's vector, F width of a flat input.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
from onnx import numpy_helper
from safetensors.numpy import load_file

from contracts.bundle import Bundle
from contracts.encoding import Encoded, Encoder
from contracts.rows import encode_pairs, encode_request


class PlainModel:
    """The tables, weights and encoders of one bundle.

    Args:
        bundle: Its files are read.
        graphs: Names of its graphs, whose weights are read.
        columns: Arrow types of an ad's raw features.
    """

    def __init__(self, bundle: Bundle, graphs: Sequence[str], columns: dict[str, pa.DataType]) -> None:
        self.tables = load_file(bundle.path / "weights.safetensors")
        self.weights = {name: value for graph in graphs for name, value in _weights(bundle.path / graph, graph)}
        sides = ("query", "ad", "pair") if bundle.schema.side_features("pair") else ("query", "ad")
        self.encoders = {side: Encoder(bundle.schema, side) for side in sides}
        self.columns = columns

    def ads(self, rows: Sequence[dict]) -> np.ndarray:
        """Flat inputs of raw ads, [A, F]."""
        columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in self.columns.items()}
        return self.flat("ad", self.encoders["ad"].encode(columns).encoded)

    def query(self, query: dict, moment_us: int) -> Encoded:
        """One encoded request."""
        return encode_request(self.encoders["query"], query, event_time_us=moment_us)[0]

    def flat(self, side: str, encoded: Encoded, *, with_sequences: bool = False) -> np.ndarray:
        """Floats, then the mean embedding of each bag, and of each field of a sequence where asked: [A, F]."""
        layout = self.encoders[side].layout
        columns = list(layout.bags)
        if with_sequences:
            columns += [field for sequence in layout.sequences for field in sequence.fields]
        rows = []
        for ids, floats in zip(encoded.ids, encoded.floats, strict=True):
            parts = [self._mean(column.table, ids[column.start : column.start + column.width]) for column in columns]
            rows.append(np.concatenate([floats, *parts]))
        return np.array(rows, np.float64)

    def events(self, encoded: Encoded) -> np.ndarray:
        """Embeddings of the events of the first request's only sequence, [events, E]."""
        sequence, ids, found = self.encoders["query"].layout.sequences[0], encoded.ids[0], []
        for event in range(sequence.max_length):
            of_fields = [ids[field.start + event] for field in sequence.fields]
            if of_fields[0] != 0:
                tables = [self.tables[f"tables.{field.table}"] for field in sequence.fields]
                found.append(np.concatenate([table[row] for table, row in zip(tables, of_fields, strict=True)]))
        return np.array(found, np.float64).reshape(len(found), sequence.dim)

    def _mean(self, table: str, ids: np.ndarray) -> np.ndarray:
        values, there = self.tables[f"tables.{table}"], ids[ids != 0]
        return values[there].mean(axis=0) if len(there) else np.zeros(values.shape[1])


class PlainTower:
    """sigmoid(query . pin), both linear in their flat inputs."""

    def __init__(self, bundle: Bundle, columns: dict[str, pa.DataType]) -> None:
        self._model = PlainModel(bundle, ("query_tower.onnx", "pin_tower.onnx"), columns)

    def probabilities(self, query: dict, moment_us: int, rows: Sequence[dict]) -> np.ndarray:
        """Of raw ads for one query, [A, H]."""
        flat = self._model.flat("query", self._model.query(query, moment_us), with_sequences=True)
        asked, pins = self._embed("query_tower.onnx", flat), self._embed("pin_tower.onnx", self._model.ads(rows))
        return _sigmoid((pins * asked).sum(axis=2))

    def _embed(self, graph: str, flat: np.ndarray) -> np.ndarray:
        weights = self._model.weights
        return (flat @ weights[graph, "weight"] + weights[graph, "bias"]).reshape(weights[graph, "shape"])


class PlainHeavy:
    """sigmoid((user * ad) task_weight + pair pair_weight + number of events * event_weight)."""

    def __init__(self, bundle: Bundle, columns: dict[str, pa.DataType]) -> None:
        self._model = PlainModel(bundle, ("request.onnx", "ads.onnx"), columns)

    def probabilities(
        self, query: dict, moment_us: int, rows: Sequence[dict], affinities: Sequence[float | None]
    ) -> np.ndarray:
        """Of raw ads, each with its pair feature, for one query, [A, K]."""
        model, weights = self._model, self._model.weights
        encoded = model.query(query, moment_us)
        events = model.events(encoded)
        user = model.flat("query", encoded) @ weights["request.onnx", "user_weight"]
        user = user + events.sum(axis=0) @ weights["request.onnx", "watch_weight"]
        crossed = user * (model.ads(rows) @ weights["ads.onnx", "ad_weight"])
        pair = encode_pairs(model.encoders["pair"], {"affinity": list(affinities)}, len(rows)).encoded
        logits = crossed @ weights["ads.onnx", "task_weight"]
        logits = logits + model.flat("pair", pair) @ weights["ads.onnx", "pair_weight"]
        return _sigmoid(logits + len(events) * weights["ads.onnx", "event_weight"])


def _weights(path: Path, graph: str) -> list[tuple[tuple[str, str], np.ndarray]]:
    initializers = onnx.load(path).graph.initializer
    return [((graph, one.name), numpy_helper.to_array(one)) for one in initializers]


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))
