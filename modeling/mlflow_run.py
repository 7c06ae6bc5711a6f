"""Logs a training or an evaluation to MLflow: configuration, metrics by step, the data it saw, where its files lie.

The run is begun before the work, so that a tracking server that cannot be reached stops it at once, and filled when it
is done, from what the run directory keeps: a training that was interrupted logs all of its history once it has ended.
Of MLflow only the client is used, and imported only where a URI was given; its telemetry is off unless
MLFLOW_DISABLE_TELEMETRY says otherwise.

    MLFLOW_TRACKING_URI      where to log, as --mlflow
    MLFLOW_EXPERIMENT_NAME   experiment that the run belongs to; ``adsieve`` unless named
"""

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from contracts.errors import AdsieveError

INSTALL = "pip install -r requirements/mlflow.txt, or leave --mlflow and MLFLOW_TRACKING_URI out"
EXPERIMENT = "adsieve"
MAX_PARAMS, MAX_METRICS, MAX_VALUE, MAX_DIGEST = 100, 1_000, 6_000, 36
"""Of one call, of one value, and of a data set's digest, as MLflow's REST API limits them."""
_NOT_IN_NAMES = re.compile(r"[^\w ./:-]")

Mlflow = Annotated[
    str | None,
    typer.Option(
        "--mlflow",
        metavar="URI",
        envvar="MLFLOW_TRACKING_URI",
        help="Also log to this MLflow tracking server, such as http://host:5000; see requirements/mlflow.txt.",
    ),
]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished training or evaluation tells.

    Args:
        metrics: Final ones, nested as they are; values that are no finite number are left out.
        history: Records with a ``step`` and metrics of that step.
        tags: Texts, such as the version of a teacher.
        logs: Directories that were read.
        watermark: Latest moment of them that was used, ISO 8601.
    """

    metrics: Mapping[str, Any] = {}
    history: Sequence[Mapping[str, Any]] = ()
    tags: Mapping[str, str | None] = {}
    logs: Sequence[Path] = ()
    watermark: str | None = None


@contextmanager
def tracking(
    uri: str | None, command: str, *, place: Path | None, params: object = None
) -> Iterator[Callable[[Outcome], None]]:
    """Log the work of the block as one MLflow run; the block calls what it gets once with its outcome.

    Args:
        uri: Of the tracking server; None or empty logs nothing.
        command: Name of the run, such as ``heavy train``.
        place: What the work leaves, of which the run keeps the path and nothing else.
        params: Configuration, nested as it is.

    Raises:
        AdsieveError: MLflow is not installed, or its server refuses or cannot be reached.
    """
    if not uri:
        yield lambda outcome: None
        return
    client, entities = _client(uri)
    with _naming(uri):
        run_id = _begin(client, entities, command, place, flat(params))
    status = "FAILED"
    try:
        yield lambda outcome: _log(client, entities, uri, run_id, outcome)
        status = "FINISHED"
    finally:
        with _naming(uri) if status == "FINISHED" else _passing_over():
            client.set_terminated(run_id, status=status)
    from contracts.progress import tell

    tell(f"logged to {shown(uri)} as run {run_id}")


def flat(value: object, prefix: str = "") -> dict[str, Any]:
    """Nested records as one, its names joined by dots; lists are values.

    Example:
        >>> flat({"loop": {"epochs": 3, "rates": [1, 2]}, "seed": 0})
        {'loop.epochs': 3, 'loop.rates': [1, 2], 'seed': 0}
    """
    plain: Any = {} if value is None else msgspec.to_builtins(value)
    found: dict[str, Any] = {}
    for name, inner in plain.items():
        if isinstance(inner, dict):
            found |= flat(inner, f"{prefix}{name}.")
        else:
            found[_NOT_IN_NAMES.sub("_", f"{prefix}{name}")] = inner
    return found


def shown(uri: str) -> str:
    """The URI without a password.

    Example:
        >>> shown("https://me:secret@host/mlflow")
        'https://host/mlflow'
    """
    return re.sub(r"//[^/@]*@", "//", uri)


def _client(uri: str) -> tuple[Any, Any]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow import entities
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise AdsieveError(f"--mlflow {shown(uri)}: MLflow is not installed", next_step=INSTALL) from error
    with _naming(uri):
        return MlflowClient(tracking_uri=uri), entities


def _begin(client: Any, entities: Any, command: str, place: Path | None, params: dict[str, Any]) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    known = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if known is None else known.experiment_id
    tags = {"adsieve.command": command} | ({} if place is None else {"adsieve.path": str(place.resolve())})
    run_id = client.create_run(experiment, run_name=command, tags=tags).info.run_id
    values = [entities.Param(key, str(value)[:MAX_VALUE]) for key, value in params.items()]
    for start in range(0, len(values), MAX_PARAMS):
        client.log_batch(run_id, params=values[start : start + MAX_PARAMS])
    return run_id


def _log(client: Any, entities: Any, uri: str, run_id: str, outcome: Outcome) -> None:
    now = int(time.time() * 1_000)
    steps = [(flat(record), int(record.get("step", number))) for number, record in enumerate(outcome.history)]
    steps.append((flat(outcome.metrics), steps[-1][1] if steps else 0))
    metrics = [
        entities.Metric(name, float(value), now, step)
        for values, step in steps
        for name, value in values.items()
        if name != "step" and isinstance(value, int | float) and math.isfinite(value)
    ]
    told = {**outcome.tags, "watermark": outcome.watermark}
    tags = [entities.RunTag(f"adsieve.{name}", value) for name, value in told.items() if value is not None]
    with _naming(uri):
        for start in range(0, len(metrics), MAX_METRICS):
            client.log_batch(run_id, metrics=metrics[start : start + MAX_METRICS])
        client.log_batch(run_id, tags=tags)
        digest = (outcome.watermark or "unknown")[:MAX_DIGEST]
        data = [entities.Dataset(log.name, digest, "local", str(log.resolve())) for log in dict.fromkeys(outcome.logs)]
        if data:
            client.log_inputs(run_id, datasets=[entities.DatasetInput(one) for one in data])


@contextmanager
def _naming(uri: str) -> Iterator[None]:
    """Turn errors of MLflow's client into one that names the server."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        text = " ".join(str(error).split())
        step = "start the server or correct --mlflow, then run the same command again: a finished run is logged at once"
        raise AdsieveError(f"--mlflow {shown(uri)}: {text}", next_step=step) from error


@contextmanager
def _passing_over() -> Iterator[None]:
    """Leave out what MLflow raises while another error is on its way."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError):
        return
