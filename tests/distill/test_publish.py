"""Sealing: what a bundle holds, what it refuses, and that a killed job leaves nothing that a reader accepts."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from contracts.artifact import is_ready
from contracts.bundle import Bundle, open_bundle
from contracts.errors import ArtifactError, InputError, WrongArtifactError
from contracts.records import LogPaths
from contracts.rows import encode_request, parse_time
from distill.data import read_scored
from distill.publish import publish_student
from distill.run import Run
from modeling.profile import feature_profile
from modeling.run import EXAMPLES
from towers.serving import TwoTowerServing

JOB = """
import os, signal, sys, threading
from pathlib import Path
from contracts.records import LogPaths
from distill.publish import publish_student
from distill.run import load_run

kill_at, delay = int(sys.argv[1]), float(sys.argv[2])
run, log, out = map(Path, sys.argv[3:])
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
steps = 0

def count(event, arguments):
    global steps
    path = str(arguments[0]) if arguments else ""
    if str(out.parent) in path and (event in CHANGES or (event == "open" and set(str(arguments[1])) & set("wa+x"))):
        steps += 1
        if steps == kill_at:
            kill = (os.getpid(), signal.SIGKILL)
            threading.Timer(delay, os.kill, kill).start() if delay else os.kill(*kill)

sys.addaudithook(count)
publish_student(load_run(run), LogPaths.under(log), out, threads=1)
print(steps)
"""


def test_a_bundle_holds_what_readers_need(bundle: Bundle, run: Run) -> None:
    manifest = bundle.manifest
    assert manifest.kind == "two_tower"
    assert manifest.scenario == "shopping"
    assert manifest.tasks == ["click", "conversion"]
    assert manifest.teacher_version == run.summary.teacher_version
    assert manifest.watermark == run.summary.watermark
    assert manifest.dims == {"num_heads": 2, "head_dim": 8, "query_flat": 21, "ad_flat": 13}
    assert manifest.metrics == run.summary.metrics
    assert set(manifest.files) == {
        "schema.yaml",
        "config.json",
        "weights.safetensors",
        "query_tower.onnx",
        "query_tower.program.safetensors",
        "pin_tower.onnx",
        "pin_tower.program.safetensors",
        "parity.safetensors",
        "requests.jsonl",
        "profile.json",
        "slices.parquet",
        "optimizer.safetensors",
    }


def test_graphs_pass_the_parity_check(bundle: Bundle) -> None:
    errors = TwoTowerServing.load(bundle, threads=1).check_parity(bundle.tensors("parity.safetensors"))
    assert max(errors.values()) < 1e-5


def test_saved_requests_are_encodable_and_equal_the_log(bundle: Bundle, log: LogPaths) -> None:
    serving = TwoTowerServing.load(bundle, threads=1)
    bodies = [msgspec.json.decode(line) for line in bundle.file("requests.jsonl").read_bytes().splitlines()]
    assert len(bodies) >= 20
    candidates = pq.read_table(log.candidates)
    for body in bodies:
        assert body["scenario"] == "shopping"
        time = parse_time(body["event_time"], "event_time")
        encoded, unknown = encode_request(serving.query_encoder, body["query"], event_time_us=time)
        assert len(encoded) == 1
        assert unknown == []
        own = candidates.filter(pc.field("request_id") == body["request_id"])
        assert body["candidates"]["ids"] == own["ad_id"].to_pylist()
        np.testing.assert_allclose(body["candidates"]["bids"], own["bid"].to_pylist(), rtol=1e-6)
        assert body["candidates"]["objectives"] == own["objective"].to_pylist()


def test_slices_are_of_this_log(bundle: Bundle, examples: pa.Table) -> None:
    slices = pq.read_table(bundle.file("slices.parquet")).to_pylist()
    whole = [row for row in slices if (row["stage"], row["slice"], row["against"]) == ("eligible", "all", "teacher")]
    assert [row["rows"] for row in whole] == [len(examples)] * 2


def test_the_profile_is_of_what_was_trained_on_whatever_the_period(run: Run, log: LogPaths, tmp_path: Path) -> None:
    trained = read_scored(run.schema, log, run.path / EXAMPLES, scenario="shopping")
    later = datetime.fromtimestamp(float(np.median(trained.event_time)) / 1e6, tz=UTC)
    bundle = publish_student(run, log, tmp_path / "bundle", start=later, threads=1)
    profile = msgspec.json.decode(bundle.file("profile.json").read_bytes())
    assert profile == msgspec.json.decode(msgspec.json.encode(feature_profile(run.schema, trained)))
    part = read_scored(run.schema, log, run.path / EXAMPLES, scenario="shopping", start=later)
    assert profile["query"]["rows"] != len(part.query)


def test_a_run_without_a_profile_is_told(run: Run, log: LogPaths, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(
        InputError, match=r"has no profile\.json, the statistics of what it was trained on; train it again"
    ):
        publish_student(replace(run, path=tmp_path / "run"), log, tmp_path / "bundle", threads=1)
    assert not (tmp_path / "bundle").exists()


def test_the_same_run_seals_the_same_version(bundle: Bundle, run: Run, log: LogPaths, tmp_path: Path) -> None:
    assert publish_student(run, log, tmp_path / "again", threads=1).manifest.version == bundle.manifest.version


def test_an_existing_bundle_is_not_overwritten(bundle: Bundle, run: Run, log: LogPaths) -> None:
    with pytest.raises(InputError, match="already holds a finished artifact"):
        publish_student(run, log, bundle.path, threads=1)


def test_a_log_of_another_teacher_is_refused(run: Run, log: LogPaths, tmp_path: Path) -> None:
    table = pq.read_table(log.candidates)
    index = table.schema.get_field_index("teacher_version")
    pq.write_table(table.set_column(index, "teacher_version", pa.array(["t-2"] * len(table))), tmp_path / "c.parquet")
    other = replace(log, candidates=str(tmp_path / "c.parquet"))
    with pytest.raises(WrongArtifactError, match="scored by t-2, but .* was distilled from heavy-all-0123456789ab"):
        publish_student(run, other, tmp_path / "bundle", threads=1)
    assert not (tmp_path / "bundle").exists()


def test_too_few_requests_are_refused(run: Run, log: LogPaths, tmp_path: Path) -> None:
    end = datetime(2026, 3, 1, 3, tzinfo=UTC)
    with pytest.raises(InputError, match="9 requests of scenario shopping in this period, a bundle keeps at least 20"):
        publish_student(run, log, tmp_path / "bundle", end=end, threads=1)


def test_a_graph_that_differs_from_the_model_is_not_sealed(
    run: Run, log: LogPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from towers import export

    def shifted(module: torch.nn.Module, *args: object, **kwargs: object) -> torch.export.ExportedProgram:
        class Shifted(torch.nn.Module):
            def forward(self, flat: torch.Tensor) -> torch.Tensor:
                return module(flat) + 0.001

        return plain(Shifted(), *args, **kwargs)

    plain = export.export
    monkeypatch.setattr(export, "export", shifted)
    with pytest.raises(ArtifactError, match="_embedding is 0.001 from the trained module"):
        publish_student(run, log, tmp_path / "bundle", threads=1)
    assert list(tmp_path.iterdir()) == []


def _publish(run: Path, log: Path, out: Path, kill_at: int = 0, delay: float = 0.0) -> int:
    """Run the job, killed ``delay`` seconds after it comes to its ``kill_at``-th change beside ``out``.

    Returns its changes, or -SIGKILL.
    """
    command = [sys.executable, "-c", JOB, str(kill_at), str(delay), str(run), str(log), str(out)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    if result.returncode == -signal.SIGKILL:
        return -signal.SIGKILL
    assert result.returncode == 0, result.stderr
    return int(result.stdout.splitlines()[-1])


def kill_publish(bundle: Bundle, run: Run, log: Path, directory: Path, delays: list[float], seed: int) -> None:
    """A killed job leaves no bundle, or a whole one; the next one completes it and removes what was left behind."""
    out, draw = directory / "store" / "bundle", random.Random(seed)
    num_steps = _publish(run.path, log, out)
    assert open_bundle(out).manifest.version == bundle.manifest.version
    for delay in delays:
        shutil.rmtree(out.parent)
        kill_at = draw.randint(1, num_steps)
        ended = _publish(run.path, log, out, kill_at, delay)
        assert ended == -signal.SIGKILL or (delay and is_ready(out))  # a late kill may find the job done
        if not is_ready(out):
            with pytest.raises(ArtifactError):
                open_bundle(out)
            publish_student(run, LogPaths.under(log), out, threads=1)
        assert open_bundle(out).manifest.version == bundle.manifest.version, (kill_at, delay)
        assert [path.name for path in out.parent.iterdir()] == ["bundle"], (kill_at, delay)


@pytest.fixture
def kill(bundle: Bundle, run: Run, log_directory: Path, tmp_path: Path) -> Callable[[list[float], int], None]:
    return lambda delays, seed: kill_publish(bundle, run, log_directory, tmp_path, delays, seed)


def test_a_killed_publish_leaves_nothing_half_there(kill: Callable[[list[float], int], None]) -> None:
    kill([0.0, 0.2], 0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_publish_killed_at_many_moments(kill: Callable[[list[float], int], None]) -> None:
    kill([0.0] * 10 + [0.03 * number for number in range(1, 11)], 1)
