"""A training and an evaluation as MLflow keeps them, in its own store of files: no server is needed to see it."""

import shutil
import sys
from pathlib import Path

import pytest

from contracts.config import dump_yaml
from contracts.errors import AdsieveError
from contracts.schema import save_schema
from modeling.mlflow_run import Outcome, tracking


@pytest.fixture
def uri(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return (tmp_path / "mlruns").as_uri()


@pytest.fixture
def runs(uri):
    """All runs of an experiment, the latest first."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)

    def found(experiment="adsieve"):
        return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])

    found.client = client
    return found


def test_a_training_keeps_its_configuration_its_losses_by_step_and_the_data_it_saw(
    invoke, run, log, schema, config, uri, runs, tmp_path
):
    save_schema(schema, tmp_path / "schema.yaml")
    dump_yaml(config, tmp_path / "config.yaml")
    again = shutil.copytree(run.path, tmp_path / "run")  # a finished run is not trained again, and logged
    logs, options = (
        Path(log.requests).parent,
        ("--schema", tmp_path / "schema.yaml", "--config", tmp_path / "config.yaml"),
    )
    done = invoke("train", "--logs", logs, "--out", again, *options, "--mlflow", uri, "--json")
    assert done.exit_code == 0, done.output
    (kept,) = runs()
    assert kept.info.status == "FINISHED"
    assert kept.data.params["loop.epochs"] == str(config.loop.epochs)
    assert kept.data.params["model.token_dim"] == str(config.model.token_dim)
    losses = [(one["step"], one["loss"]) for one in run.summary.history]
    history = runs.client.get_metric_history(kept.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == losses
    assert len(losses) > 1
    assert kept.data.metrics["click.auc"] == run.summary.metrics["click"]["auc"]
    assert kept.data.tags["adsieve.watermark"] == run.summary.watermark
    assert kept.data.tags["adsieve.path"] == str(again)
    (data,) = kept.inputs.dataset_inputs
    assert (data.dataset.source, data.dataset.digest) == (str(logs), run.summary.watermark)
    assert str(kept.info.run_id) in done.stderr


def test_an_evaluation_keeps_every_figure_of_every_slice(invoke, run, log, uri, runs, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "judged")
    done = invoke("evaluate", "--logs", Path(log.requests).parent, "--run", run.path)
    assert done.exit_code == 0, done.output
    (kept,) = runs("judged")
    assert kept.data.metrics["all.model.click.rows"] > 0
    assert 0 < kept.data.metrics["shopping.model.click.auc"] < 1
    assert kept.data.tags["adsieve.command"] == "heavy evaluate"


def test_work_that_fails_is_a_run_that_failed_and_its_error_comes_out(uri, runs):
    with (
        pytest.raises(ValueError, match="diverged"),
        tracking(uri, "heavy train", place=None, params={"a": {"b": [1]}}),
    ):
        raise ValueError("diverged")
    (kept,) = runs()
    assert (kept.info.status, kept.data.params) == ("FAILED", {"a.b": "[1]"})


def test_values_that_are_no_numbers_are_left_out_and_names_are_made_to_fit(uri, runs):
    history = [{"step": 5, "epoch": 1, "loss": None}, {"step": 9, "epoch": 2, "loss": 0.25}]
    with tracking(uri, "x", place=None, params={f"p{i}": i for i in range(250)}) as track:
        track(
            Outcome(metrics={"recall@10 (%)": 1, "auc": float("nan"), "name": "b"}, history=history, logs=[Path("log")])
        )
    (kept,) = runs()
    assert len(kept.data.params) == 250
    assert kept.data.metrics == {"recall_10 ___": 1, "epoch": 2, "loss": 0.25}


def test_without_a_uri_nothing_is_imported_or_logged(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with tracking(None, "x", place=None) as track:
        track(Outcome(metrics={"a": 1}))


def test_without_mlflow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(AdsieveError, match="https://host: MLflow is not installed") as caught:
        tracking("https://me:secret@host", "x", place=None).__enter__()
    assert "pip install -r requirements/mlflow.txt" in caught.value.next_step


def test_a_server_that_is_not_there_stops_the_work_before_it_begins(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with (
        pytest.raises(AdsieveError, match="--mlflow http://127.0.0.1:1: "),
        tracking("http://127.0.0.1:1", "x", place=None),
    ):
        pytest.fail("the work began")
