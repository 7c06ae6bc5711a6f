"""Which engine runs the query tower is a setting; whatever it is, the embeddings keep the engine's gate."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from contracts.bundle import PARITY_FILE, open_bundle
from contracts.encoding import Encoded
from contracts.errors import AdsieveError, ArtifactError, ConfigError
from engines.names import ENGINES, NVIDIA_DEVICES
from engines.openvino_cpu import has_bf16
from engines.parity import BF16_GATE, FP32_GATE
from service.engine_memory import engine_memory
from service.releases import Snapshot, load_release
from towers.query_engine import open_query_engine
from towers.serving import TwoTowerServing
from towers.tower_engine import pair_probabilities


@pytest.mark.parametrize("engine", ["auto", "onnxruntime_cpu", "openvino_fp32", "openvino_bf16"])
def test_probabilities_are_the_trained_modules(artifacts: Path, engine: str):
    if engine == "openvino_bf16" and not has_bf16():
        pytest.skip("this CPU has no BF16")
    bundle = open_bundle(artifacts / "standard-0", kind="two_tower")
    saved = bundle.tensors(PARITY_FILE)
    tower = TwoTowerServing.load(bundle, threads=1)
    tower.choose_query_engine(bundle, engine, threads=1)
    assert tower.engine == engine or (engine == "auto" and tower.engine in ENGINES)
    pins = saved["out.pin_embedding"]
    expected = [1 / (1 + np.exp(-(q[:, None] * pins.swapaxes(0, 1)).sum(2).T)) for q in saved["out.query_embedding"]]
    rows = [Encoded(saved["in.query_ids"][at : at + 1], saved["in.query_floats"][at : at + 1]) for at in range(4)]
    gate = FP32_GATE if tower.engine in ("onnxruntime_cpu", "openvino_fp32") else BF16_GATE
    for row, probabilities in zip(rows, expected, strict=False):
        found = pair_probabilities(tower.embed_query(row), pins)
        np.testing.assert_allclose(found, probabilities, atol=gate.tolerance)


def test_a_release_is_served_by_the_engine_of_the_settings(world, as_built):
    release = world.store.current("standard")
    loaded = load_release(
        release,
        world.store.paths(release),
        serving=Snapshot(),
        open_live=as_built,
        engine_threads=1,
        query_engine="openvino_fp32",
    )
    assert loaded.tower.engine == "openvino_fp32"


def test_whatever_a_later_process_measures_it_serves_with_the_engines_of_the_first(world, as_built, monkeypatch):
    """Every engine seems the faster the later it is tried; then the earlier."""
    release = world.store.current("standard")

    def engines() -> tuple[str, str]:
        loaded = load_release(
            release,
            world.store.paths(release),
            serving=Snapshot(),
            open_live=as_built,
            engine_threads=1,
            query_engine="auto",
            heavy_engine="auto",
        )
        return loaded.tower.engine, loaded.heavy.engine

    faster = itertools.count(1)
    monkeypatch.setattr("engines.select.median_ms", lambda call, seconds: 0.5 ** next(faster))
    first = engines()
    assert "onnxruntime_cpu" not in first
    monkeypatch.setattr("engines.select.median_ms", lambda call, seconds: float(next(faster)))
    assert engines() == first


def test_choices_are_kept_where_the_processes_of_a_service_can_write(artifacts, tmp_path, monkeypatch):
    bundle = open_bundle(artifacts / "standard-0", kind="two_tower")
    (tmp_path / "file").touch()
    monkeypatch.setattr("service.engine_memory.cache_directory", lambda: tmp_path / "file" / "engines")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert engine_memory("query tower", bundle, 1).path.parent == tmp_path / "engines"
    monkeypatch.setattr("service.engine_memory.cache_directory", lambda: tmp_path / "caches" / "engines")
    assert engine_memory("query tower", bundle, 1).path.parent == tmp_path / "caches" / "engines"


def test_choices_are_those_of_a_shape(artifacts):
    first, next_night = (open_bundle(artifacts / f"standard-{number}", kind="two_tower") for number in (0, 1))
    assert first.manifest.version != next_night.manifest.version
    path = engine_memory("query tower", first, 1).path
    assert engine_memory("query tower", next_night, 1).path == path
    others = engine_memory("query tower", first, 2), engine_memory("query tower", first, 1, [100])
    assert path not in [memory.path for memory in others]


def test_an_engine_that_does_not_keep_the_rows_is_refused(artifacts: Path, monkeypatch: pytest.MonkeyPatch):
    bundle = open_bundle(artifacts / "standard-0", kind="two_tower")
    tower = TwoTowerServing.load(bundle, threads=1)
    saved = bundle.tensors(PARITY_FILE)
    saved["out.query_embedding"] = saved["out.query_embedding"] + np.float32(0.05)
    monkeypatch.setattr(type(bundle), "tensors", lambda self, name="weights.safetensors": saved)
    with pytest.raises(ArtifactError, match="no engine can serve: openvino_fp32 refused: .* allowed 1e-05"):
        tower.choose_query_engine(bundle, "openvino_fp32", threads=1)
    assert tower.engine == "onnxruntime_cpu"


def test_what_a_machine_lacks_is_told(artifacts: Path):
    bundle = open_bundle(artifacts / "standard-0", kind="two_tower")
    with pytest.raises(ConfigError, match="engine: expected auto or one of onnxruntime_cpu, .*, got 'tpu'"):
        open_query_engine(bundle, "tpu", threads=1)
    if not any(device.exists() for device in NVIDIA_DEVICES):
        with pytest.raises(AdsieveError, match="no engine can serve: torch_cuda unavailable"):
            TwoTowerServing.load(bundle, threads=1).choose_query_engine(bundle, "torch_cuda")
