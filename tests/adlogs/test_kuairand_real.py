"""The conversion of the real log: its known counts, and that the features carry what is known to be in it."""

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from adlogs.fit import fit_log, named_schema
from adlogs.kuairand import convert_kuairand
from contracts.records import LogPaths, utc_micros
from modeling.examples import encode_log


@pytest.fixture(scope="module")
def log(kuairand: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kuairand") / "log"
    convert_kuairand(kuairand, out)
    return out


def test_known_counts(log: Path) -> None:
    split = json.loads((log / "split.json").read_text())
    counts = split["counts"]
    assert (counts["impressions"], counts["test"], counts["dropped"]) == (222_441, 55_611, 3)
    assert counts["train"] + counts["validation"] == 222_441 - 55_611
    labels = pq.read_table(log / "candidates", columns=["stage", "label_click", "label_conv_engage"])
    shown = labels.filter(np.asarray(labels["stage"].cast("string")) == "winner")
    assert np.asarray(shown["label_click"]).mean() == pytest.approx(0.4496, abs=1e-4)
    assert np.asarray(shown["label_conv_engage"]).mean() == pytest.approx(0.0337, abs=1e-4)
    assert labels["label_click"].null_count == len(labels) - len(shown) == counts["eligible"]


def test_ads_do_not_change_after_the_split(log: Path) -> None:
    until = datetime.fromisoformat(json.loads((log / "split.json").read_text())["train_until"])
    ads = pq.read_table(log / "ads", columns=["valid_from"])
    last = utc_micros(ads["valid_from"], column="valid_from", source="ads").max()
    assert last - until.timestamp() * 1e6 < 24 * 3600 * 1e6, "the last rows are of the day after the split"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:lbfgs")
def test_a_linear_model_on_the_dense_features_alone_ranks_well(log: Path, tmp_path: Path) -> None:
    split = json.loads((log / "split.json").read_text())
    validate_from, until = (datetime.fromisoformat(split[name]) for name in ("validate_from", "train_until"))
    schema = fit_log(named_schema("kuairand_heavy"), LogPaths.under(log), until=validate_from)
    rows = encode_log(schema, LogPaths.under(log), tmp_path, teacher=False, labels=True)
    assert rows.pair is not None
    dense = np.concatenate([rows.query.floats[rows.request_row], rows.ad.floats[rows.ad_row], rows.pair.floats], axis=1)
    click, engage = rows.labels.T
    training = rows.event_time[rows.request_row] < until.timestamp() * 1e6
    clicked = training & (click == 1)
    click_model = LogisticRegression(C=0.1, max_iter=40).fit(dense[training], click[training])
    engage_model = LogisticRegression(C=0.1, max_iter=40).fit(dense[clicked], engage[clicked])
    p_click = click_model.predict_proba(dense[~training])[:, 1]
    p_engage = p_click * engage_model.predict_proba(dense[~training])[:, 1]
    assert roc_auc_score(click[~training], p_click) > 0.735
    assert roc_auc_score(engage[~training], p_engage) > 0.755
