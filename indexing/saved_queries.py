"""Query embeddings of the requests that a bundle keeps: what vectors of ads are judged by."""

import numpy as np
from msgspec import json

from contracts.bundle import PARITY_FILE, Bundle
from contracts.encoding import Encoded
from contracts.rows import encode_request, parse_time
from towers.serving import TwoTowerServing

REQUESTS_FILE = "requests.jsonl"


def saved_query_embeddings(bundle: Bundle, towers: TwoTowerServing) -> np.ndarray:
    """Embeddings of the saved requests, float32 [R, H, D+2]; of the parity rows where a bundle keeps no requests.

    A request that names no time of its own is taken at the bundle's watermark, so that two builds are alike.

    Raises:
        RequestError: A saved request cannot be encoded.
    """
    if REQUESTS_FILE not in bundle.manifest.files:
        saved = bundle.tensors(PARITY_FILE)
        return towers.embed_query(Encoded(ids=saved["in.query_ids"], floats=saved["in.query_floats"]))
    rows, watermark = [], parse_time(bundle.manifest.watermark, "watermark")
    for line in bundle.file(REQUESTS_FILE).read_bytes().splitlines():
        body = json.decode(line)
        event_time = parse_time(body["event_time"], "event_time") if "event_time" in body else watermark
        rows.append(encode_request(towers.query_encoder, body["query"], event_time_us=event_time)[0])
    ids, floats = (np.concatenate([getattr(row, name) for row in rows]) for name in ("ids", "floats"))
    return towers.embed_query(Encoded(ids, floats))
