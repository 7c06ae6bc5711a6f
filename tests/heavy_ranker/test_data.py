import numpy as np
import pytest

from contracts.errors import ConfigError
from contracts.records import STAGES
from heavy_ranker.data import read_impressions
from modeling.split import split_by_time


@pytest.fixture(scope="module")
def impressions(schema, log, tmp_path_factory):
    return read_impressions(schema, log, tmp_path_factory.mktemp("cache"))


def test_only_labelled_winners_are_read(impressions):
    assert len(impressions) == 600 * 3
    assert set(np.asarray(impressions.stage)) == {STAGES.index("winner")}
    assert not np.isnan(impressions.labels[:, 0]).any()


def test_immature_labels_stay_unknown(impressions):
    unknown = np.isnan(impressions.labels[:, 2]).mean()
    assert 0.2 < unknown < 0.4


def test_validation_is_the_last_share_and_no_request_is_divided(impressions):
    training, validation = split_by_time(impressions, 0.25)
    assert len(training) + len(validation) == len(impressions)
    assert len(validation) / len(impressions) == pytest.approx(0.25, abs=0.01)
    last_trained = impressions.event_time[training.request_row].max()
    first_validated = impressions.event_time[validation.request_row].min()
    assert last_trained < first_validated


def test_share_zero_keeps_all(impressions):
    training, validation = split_by_time(impressions, 0.0)
    assert len(training) == len(impressions)
    assert validation is None


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_share_out_of_range_is_refused(impressions, share):
    with pytest.raises(ConfigError, match=rf"validation_share: expected a number in \[0, 1\), got {share}"):
        split_by_time(impressions, share)


def test_a_share_that_leaves_nothing_is_refused(impressions):
    one_request = impressions.select(np.flatnonzero(np.asarray(impressions.request_row) == 0))
    with pytest.raises(ConfigError, match="validation_share: 0.5 of 3 pairs leaves one part empty"):
        split_by_time(one_request, 0.5)
