"""The plain side of the distillation benchmark is the same student: equal weights give equal logits, and one step."""

import numpy as np
import pytest
import torch

from benchmarks.distill_log import ADS, CANDIDATES, distill_log
from benchmarks.our_distill import OurDistilling
from benchmarks.plain_distill import Pair, Pairs, PlainDistilling
from contracts.schema import FeatureSchema
from distill.presets import shopping
from distill.train import forward
from modeling.batches import gather
from modeling.examples import Examples

PRIOR = torch.tensor([-3.0, -4.5])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureSchema, Examples]:
    return distill_log(tmp_path_factory.mktemp("distill"), requests=40, preset="tiny")


def _ours(schema: FeatureSchema) -> OurDistilling:
    return OurDistilling(schema, shopping(), PRIOR, precision="fp32", compile=False)


def _plain(schema: FeatureSchema, ours: OurDistilling) -> PlainDistilling:
    """With the weights of ours."""
    plain = PlainDistilling(schema, shopping().towers, PRIOR, 1e-3)
    tables = ours.model.tables.export_tables()
    with torch.no_grad():
        for name, weight in plain.model.tables.weights.items():
            weight.copy_(torch.from_numpy(tables[f"tables.{name.replace('-', '.')}"]))
    plain.model.query_tower.load_state_dict(ours.model.query_tower.state_dict())
    plain.model.pin_tower.load_state_dict(ours.model.pin_tower.state_dict())
    return plain


def _collated(examples: Examples, rows: np.ndarray) -> Pair:
    pairs = Pairs(examples)
    return Pair(*(torch.stack(field) for field in zip(*(pairs[row] for row in rows.tolist()), strict=True)))


def test_plain_and_ours_compute_the_same_logits(log: tuple[FeatureSchema, Examples]) -> None:
    schema, examples = log
    ours = _ours(schema)
    rows = np.random.default_rng(0).permutation(len(examples))[:200]
    with torch.no_grad():
        expected = forward(ours.model, gather(examples, rows))
        torch.testing.assert_close(
            _plain(schema, ours).model(_collated(examples, rows)), expected, atol=1e-5, rtol=1e-5
        )


def test_a_timed_step_updates_as_a_step_does(log: tuple[FeatureSchema, Examples]) -> None:
    schema, examples = log
    batch = gather(examples, np.arange(300))
    once, timed = _ours(schema), _ours(schema)
    once.step(batch)
    assert all(part > 0 for part in timed.timed_step(batch))
    torch.testing.assert_close(dict(timed.model.named_parameters()), dict(once.model.named_parameters()))
    for name, table in once.model.tables.export_tables().items():
        np.testing.assert_allclose(timed.model.tables.export_tables()[name], table, atol=1e-6)


def test_a_request_has_different_ads_and_popular_ones_come_often(log: tuple[FeatureSchema, Examples]) -> None:
    _, examples = log
    ads = examples.ad_row.reshape(-1, CANDIDATES)
    assert all(len(set(row)) == CANDIDATES for row in ads.tolist())
    catalogue = len({text.as_py() for text in examples.ad_ids})
    counts = np.sort(np.bincount(examples.ad_row))[::-1]
    assert catalogue <= ADS
    assert counts[0] == len(ads)  # the most popular is in every request
    assert counts[:50].sum() > 0.25 * counts.sum()


def test_the_teachers_logits_are_of_rare_events(log: tuple[FeatureSchema, Examples]) -> None:
    _, examples = log
    np.testing.assert_allclose(examples.teacher.mean(0), [-3.0, -4.5], atol=1e-3)
    np.testing.assert_allclose(examples.teacher.std(0), 1.2, atol=1e-3)
