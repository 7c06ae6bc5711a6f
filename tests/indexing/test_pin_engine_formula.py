"""Every engine of the CPU computes the pin tower's formula, here in plain NumPy and fp64, whatever the size of a call.

Shapes: A ads, F width of the flat input, D width of the crossed vector, H heads, E width of a head's vector.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from contracts.bundle import Bundle, seal_bundle
from contracts.config import convert
from contracts.encoding import Encoded, Encoder
from contracts.schema import FeatureSchema
from engines.openvino_cpu import has_bf16
from engines.protocol import Engine
from indexing.pin_engine import ROWS, embed_in_pieces, open_pin_engine
from towers.build import build_two_tower
from towers.export import ParityRows, export_two_tower
from towers.presets import standard
from towers.serving import TwoTowerServing

THREADS = 2
SIZES = (1, 2, 15, 17, 255, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 77)
"""One ad, odd numbers, what the engine is compiled for, and more."""
TOLERANCES = {"onnxruntime_cpu": 1e-5, "openvino_fp32": 1e-5, "openvino_bf16": 3e-2}
"""Of the length of a head's vector. fp32 has 24 bits, and sums are of some hundred terms; BF16 has 8, and its products
pass through five layers, each of which may add half a unit in the last place of what it rounds (2**-9) or a few."""

Weights = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def bundle(tower_schema: dict, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A tower of the measured preset with weights that are all random: no gain is one, no bias zero."""
    tables = {name: {**table, "dim": 8} for name, table in tower_schema["tables"].items()}
    schema = convert({**tower_schema, "tables": tables}, FeatureSchema, source="schema")
    model = build_two_tower(schema, standard(), seed=3)
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.pin_tower.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    rows = {side: _random_rows(Encoder(schema, side), 4) for side in ("query", "ad")}
    return seal_bundle(
        tmp_path_factory.mktemp("formula") / "two_tower",
        kind="two_tower",
        scenario="shopping",
        schema=schema,
        config={},
        dims={"head_dim": 32},
        watermark="2026-01-01T00:00:00+00:00",
        fill=lambda directory: export_two_tower(model, directory, ParityRows(rows["query"], rows["ad"])),
    )


def _random_rows(encoder: Encoder, count: int) -> Encoded:
    rng, layout = np.random.default_rng(count), encoder.layout
    return Encoded(
        rng.integers(1, 5, (count, layout.num_ids)).astype(np.int32),
        rng.standard_normal((count, layout.num_floats)).astype(np.float32),
    )


@pytest.fixture(scope="module")
def weights(bundle: Bundle) -> Weights:
    """Of the pin tower, fp64."""
    prefix = "pin_tower."
    return {
        name.removeprefix(prefix): np.asarray(values, np.float64)
        for name, values in bundle.tensors().items()
        if name.startswith(prefix)
    }


@pytest.fixture(scope="module", params=TOLERANCES)
def engine(request: pytest.FixtureRequest, bundle: Bundle) -> Engine:
    """Each engine as a build of two threads opens it."""
    if request.param == "openvino_bf16" and not has_bf16():
        pytest.skip("this CPU has no BF16")
    return open_pin_engine(bundle, request.param, threads=THREADS)


def linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return normed * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def plain_expert(weights: Weights, name: str, x0: np.ndarray) -> np.ndarray:
    """One full-rank cross layer, two low-rank ones behind it, then ``z + W2 relu(W1 norm(z))``."""
    z = x0 * linear(weights, f"{name}.cross.full_rank.0.linear", x0) + x0
    for layer in (0, 1):
        low = f"{name}.cross.low_rank.{layer}"
        matrix = weights[f"{low}.up.weight"] @ weights[f"{low}.down.weight"]
        z = x0 * (z @ matrix.T + weights[f"{low}.up.bias"]) + z
    hidden = np.maximum(linear(weights, f"{name}.mlp.1", layer_norm(weights, f"{name}.mlp.0", z)), 0)
    return z + linear(weights, f"{name}.out", hidden)


def plain_gate(weights: Weights, name: str, x0: np.ndarray) -> np.ndarray:
    logits = linear(weights, f"{name}.out", np.maximum(linear(weights, f"{name}.hidden", x0), 0))
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def plain_pin_tower(weights: Weights, flat: np.ndarray) -> np.ndarray:
    """[A, F] to [A, H, E+2]: of each head its vector, its bias, and 1."""
    x0 = layer_norm(weights, "stem.1", linear(weights, "stem.0", flat.astype(np.float64)))
    experts = [plain_expert(weights, f"mixture.experts.{number}", x0) for number in range(4)]
    heads = []
    for head in range(2):
        gate = plain_gate(weights, f"mixture.gates.{head}", x0)
        mixed = sum(gate[:, [number]] * expert for number, expert in enumerate(experts))
        projected = linear(weights, f"heads.projections.{head}", layer_norm(weights, "heads.norm", mixed))
        heads.append(np.concatenate([projected, np.ones((len(flat), 1))], axis=1))
    return np.stack(heads, axis=1)


def flat_rows(weights: Weights, count: int, seed: int = 0) -> np.ndarray:
    width = weights["stem.0.weight"].shape[1]
    return np.random.default_rng(seed + count).standard_normal((count, width)).astype(np.float32)


def assert_near(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Within a share of the length of each head's vector; the constant exactly."""
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[..., -1], 1)
    length = np.linalg.norm(expected[..., :-1], axis=-1)
    error = np.linalg.norm(found[..., :-1] - expected[..., :-1], axis=-1)
    assert (error <= tolerance * length).all(), (error / length).max()


@pytest.mark.parametrize("size", SIZES)
def test_a_call_of_any_size_is_the_formula(engine: Engine, weights: Weights, size: int) -> None:
    flat = flat_rows(weights, size)
    assert_near(engine.run({"flat": flat})["embedding"], plain_pin_tower(weights, flat), TOLERANCES[engine.name])


def test_pieces_of_encoded_ads_are_the_formula(engine: Engine, bundle: Bundle, weights: Weights) -> None:
    towers = TwoTowerServing.load(bundle, threads=1)
    ads = _random_rows(towers.ad_encoder, 2 * ROWS + 333)
    expected = plain_pin_tower(weights, towers.ad_lookup(ads.ids, ads.floats).flat)
    assert_near(embed_in_pieces(engine, towers.ad_lookup, ads), expected, TOLERANCES[engine.name])
    with ThreadPoolExecutor(THREADS) as pool:
        assert_near(embed_in_pieces(engine, towers.ad_lookup, ads, pool.map), expected, TOLERANCES[engine.name])


def test_threads_that_share_an_engine_get_their_own_rows(engine: Engine, weights: Weights) -> None:
    """More threads than the engine has streams, calls of all sizes at once; results are kept until the end."""
    cases = [flat_rows(weights, size, seed) for seed in range(6) for size in (1, 33, ROWS, 33, 400)]
    expected = [plain_pin_tower(weights, flat) for flat in cases]
    with ThreadPoolExecutor(3 * THREADS) as pool:
        found = list(pool.map(lambda flat: engine.run({"flat": flat})["embedding"], cases))
    for one, wanted in zip(found, expected, strict=True):
        assert_near(one, wanted, TOLERANCES[engine.name])


def test_bf16_rounds_and_fp32_does_not(bundle: Bundle, weights: Weights) -> None:
    if not has_bf16():
        pytest.skip("this CPU has no BF16")
    flat = flat_rows(weights, 64)
    expected = plain_pin_tower(weights, flat)
    for name, least, most in (("openvino_fp32", 0.0, 1e-5), ("openvino_bf16", 1e-4, 3e-2)):
        error = open_pin_engine(bundle, name, threads=1).run({"flat": flat})["embedding"] - expected
        assert least <= np.linalg.norm(error) / np.linalg.norm(expected) <= most
