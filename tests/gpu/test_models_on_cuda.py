"""Both models on a CUDA device give what they give on the CPU. Needs torch and a device alone: no log, no look-ups."""

import pytest
import torch
from torch import nn

from contracts.config import convert
from contracts.layout import side_layout
from contracts.schema import FeatureSchema
from heavy_ranker.build import build_ranker
from heavy_ranker.presets import small
from heavy_ranker.rows import IndexedRows
from towers.build import build_tower
from towers.presets import standard

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TOLERANCE = 1e-4  # fp32 on both sides, TF32 off: only the order of sums differs
REQUESTS, ADS, LENGTH = 3, 40, 12


def _schema() -> FeatureSchema:
    fields = {"ad_id": {"kind": "categorical", "table": "ad"}}
    features = {
        "user_ctr": {"side": "query", "kind": "dense", "default": 0.1},
        "clicks": {"side": "query", "kind": "sequence", "max_length": LENGTH, "fields": fields},
        "ad_id": {"side": "ad", "kind": "categorical", "table": "ad"},
        "price": {"side": "ad", "kind": "dense", "default": 0.0},
    }
    data = {"tasks": ["click"], "objectives": {"click": "click"}, "features": features}
    return convert({**data, "tables": {"ad": {"dim": 8, "buckets": 64}}}, FeatureSchema, source="test")


def _moved(module: nn.Module) -> nn.Module:
    torch.backends.cuda.matmul.allow_tf32 = False
    return module.eval().to("cuda")


def test_the_heavy_ranker_scores_alike() -> None:
    torch.manual_seed(1)
    schema, config = _schema(), small().model
    ranker = build_ranker(schema, config).eval()
    layouts = {side: side_layout(schema, side) for side in ("query", "ad")}
    flat = torch.randn(REQUESTS, layouts["query"].flat_dim(pool_sequences=False))
    events, mask = torch.randn(REQUESTS, LENGTH, 8), (torch.rand(REQUESTS, LENGTH) < 0.7).float()
    ads = torch.randn(ADS, layouts["ad"].flat_dim(pool_sequences=False))
    index = torch.randint(REQUESTS, (ADS,))
    rows, moved_rows = IndexedRows(index, REQUESTS), IndexedRows(index.cuda(), REQUESTS)
    with torch.no_grad():
        expected = ranker.score_ads(ranker.encode_request(flat, {"clicks": (events, mask)}), rows, ads)
        moved = _moved(ranker)
        state = moved.encode_request(flat.cuda(), {"clicks": (events.cuda(), mask.cuda())})
        found = moved.score_ads(state, moved_rows, ads.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_tower_embeds_alike() -> None:
    torch.manual_seed(2)
    config = standard()
    tower = build_tower(config.query, 96, 2, config.head_dim, "query").eval()
    flat = torch.randn(REQUESTS, 96)
    with torch.no_grad():
        expected = tower(flat)
        found = _moved(tower)(flat.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=TOLERANCE, atol=TOLERANCE)
