"""Engines of the pin tower: each embeds as the plain formula, the one that serves keeps the bundle's probabilities."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file, save_file

from contracts.artifact import file_entries
from contracts.bundle import Bundle, open_bundle
from contracts.errors import ArtifactError, ConfigError
from engines.names import ENGINES, EXACT_ENGINE, NVIDIA_DEVICES
from indexing import pin_engine
from indexing.embed import AdEmbedder
from indexing.pin_engine import choose_pin_engine, embed_in_pieces, open_pin_engine
from towers.serving import TwoTowerServing
from towers.tower_engine import pair_probabilities

CPU_ENGINES = ("onnxruntime_cpu", "openvino_fp32")


@pytest.fixture
def bundle(bundles: Path) -> Bundle:
    return open_bundle(bundles / "two_tower")


@pytest.mark.parametrize("name", CPU_ENGINES)
def test_pieces_equal_one_call_of_the_exact_engine(
    bundle: Bundle, ads_table: Callable[..., pa.Table], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    towers = TwoTowerServing.load(bundle, threads=1)
    ads = towers.ad_encoder.encode(ads_table(100)).encoded
    monkeypatch.setattr(pin_engine, "ROWS", 16)
    found = embed_in_pieces(open_pin_engine(bundle, name, threads=2), towers.ad_lookup, ads)
    np.testing.assert_allclose(found, towers.embed_ads(ads), rtol=1e-5, atol=1e-5)
    assert embed_in_pieces(open_pin_engine(bundle, name, threads=2), towers.ad_lookup, ads.take([])).shape[0] == 0


def test_pair_probabilities_equal_a_loop() -> None:
    rng = np.random.default_rng(0)
    query, pins = rng.standard_normal((3, 2, 6)), rng.standard_normal((4, 2, 6))
    found = pair_probabilities(query, pins)
    for request in range(3):
        for ad in range(4):
            for head in range(2):
                expected = 1 / (1 + np.exp(-query[request, head] @ pins[ad, head]))
                assert found[request * 4 + ad, head] == pytest.approx(expected)


def test_auto_takes_an_engine_that_passes_and_a_name_takes_that_one(bundle: Bundle) -> None:
    lookup = TwoTowerServing.load(bundle, threads=1).ad_lookup
    assert choose_pin_engine(bundle, lookup)[0] in ENGINES
    for name in CPU_ENGINES:
        assert choose_pin_engine(bundle, lookup, name=name)[0] == name
    with pytest.raises(ConfigError, match="engine: expected auto or one of onnxruntime_cpu, .*, got 'tpu'"):
        choose_pin_engine(bundle, lookup, name="tpu")


def test_an_engine_for_a_gpu_is_refused_without_one(bundle: Bundle) -> None:
    if any(device.exists() for device in NVIDIA_DEVICES):
        pytest.skip("this machine has a GPU")
    lookup = TwoTowerServing.load(bundle, threads=1).ad_lookup
    with pytest.raises(ArtifactError, match="no engine can serve: torch_cuda unavailable"):
        choose_pin_engine(bundle, lookup, name="torch_cuda")


def test_an_engine_with_other_probabilities_is_refused(make_two_tower: Callable, tmp_path: Path) -> None:
    bundle = make_two_tower(tmp_path / "two_tower")
    lookup = TwoTowerServing.load(bundle, threads=1).ad_lookup
    path = bundle.path / "parity.safetensors"
    saved = load_file(path)
    path.unlink()
    saved["out.pin_embedding"][:, :, -2] += 0.01  # the bias
    save_file(saved, path)
    with pytest.raises(ArtifactError, match=r"onnxruntime_cpu refused: .*output probabilities is .* allowed 1e-05"):
        choose_pin_engine(bundle, lookup, name=EXACT_ENGINE)
    manifest = msgspec.structs.replace(bundle.manifest, files=file_entries(bundle.path))
    with pytest.raises(ArtifactError, match="pin_embedding"):
        AdEmbedder(replace(bundle, manifest=manifest), None, precision="fp16", threads=1, engine="auto")
