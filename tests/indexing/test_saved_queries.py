"""Embeddings of saved requests depend on the bundle alone."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from contracts.artifact import file_entries
from contracts.bundle import Bundle, open_bundle
from indexing import saved_queries
from indexing.saved_queries import REQUESTS_FILE, saved_query_embeddings
from towers.serving import TwoTowerServing

WATERMARK_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


def test_a_request_without_a_time_is_taken_at_the_watermark(bundles: Path, tmp_path: Path, monkeypatch: Any) -> None:
    bundle = _with_requests(open_bundle(bundles / "two_tower"), tmp_path, [{}, {"event_time": 1_767_225_600_001}])
    towers, asked = TwoTowerServing.load(bundle, threads=1), []

    def encode(encoder: Any, query: dict, *, event_time_us: int) -> Any:
        asked.append(event_time_us)
        return encode_request(encoder, query, event_time_us=event_time_us)

    encode_request = saved_queries.encode_request
    monkeypatch.setattr(saved_queries, "encode_request", encode)
    first = saved_query_embeddings(bundle, towers)
    assert asked == [WATERMARK_US, WATERMARK_US + 1000]
    np.testing.assert_array_equal(saved_query_embeddings(bundle, towers), first)


def _with_requests(bundle: Bundle, directory: Path, fields: list[dict[str, Any]]) -> Bundle:
    for path in bundle.path.iterdir():
        (directory / path.name).symlink_to(path)
    lines = [json.dumps({"query": {"country": "DE"}, **more}) for more in fields]
    (directory / REQUESTS_FILE).unlink()  # a link, through which the bundle itself would be written
    (directory / REQUESTS_FILE).write_text("\n".join(lines) + "\n")
    entries = {**bundle.manifest.files, REQUESTS_FILE: file_entries(directory)[REQUESTS_FILE]}
    return replace(bundle, path=directory, manifest=msgspec.structs.replace(bundle.manifest, files=entries))
