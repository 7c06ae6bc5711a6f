"""An engine that never opens holds nothing up: it counts as unavailable, and the others are tried."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.bundle import Bundle, open_bundle
from contracts.errors import AdsieveError, ArtifactError
from engines.protocol import Engine
from indexing import pin_engine
from indexing.pin_engine import OpeningEngines, choose_pin_engine, open_pin_engine
from towers.serving import TwoTowerServing


@pytest.fixture
def bundle(bundles: Path) -> Bundle:
    return open_bundle(bundles / "two_tower")


@pytest.fixture
def stuck() -> Iterator[Any]:
    """Opens engines, but for OpenVINO's, which wait for the end of the test."""
    end = threading.Event()

    def open_engine(bundle: Bundle, name: str, *, threads: int) -> Engine:
        if name.startswith("openvino"):
            end.wait()
        return open_pin_engine(bundle, name, threads=threads)

    yield open_engine
    end.set()


def test_one_that_never_opens_is_named_and_another_serves(
    bundle: Bundle, stuck: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pin_engine, "TOLD_AFTER_S", 0.0)
    lookup = TwoTowerServing.load(bundle, threads=1).ad_lookup
    opening = OpeningEngines(bundle, "auto", threads=1, open_engine=stuck, limit_s=2.0)
    assert choose_pin_engine(bundle, lookup, opening=opening)[0] == "onnxruntime_cpu"
    told = " ".join(capsys.readouterr().err.split())
    assert "openvino_fp32, openvino_bf16 to open, at most 2 s" in told
    opening = OpeningEngines(bundle, "openvino_fp32", threads=1, open_engine=stuck, limit_s=0.1)
    with pytest.raises(ArtifactError, match=r"openvino_fp32 unavailable: was not open after 0.1 s of waiting"):
        choose_pin_engine(bundle, lookup, name="openvino_fp32", opening=opening)


def test_what_opening_raises_is_raised_where_it_is_asked_for(bundle: Bundle) -> None:
    def broken(bundle: Bundle, name: str, *, threads: int) -> Engine:
        raise AdsieveError(f"no {name} here")

    opening = OpeningEngines(bundle, "auto", threads=1, open_engine=broken)
    with pytest.raises(AdsieveError, match="no openvino_bf16 here"):
        opening.take("openvino_bf16")
    assert opening.take("torch_cuda") is None


def test_a_stuck_thread_does_not_keep_the_process() -> None:
    program = (
        "import threading\n"
        "from indexing.pin_engine import OpeningEngines\n"
        "OpeningEngines(None, 'auto', threads=1, open_engine=lambda *a, **b: threading.Event().wait())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
