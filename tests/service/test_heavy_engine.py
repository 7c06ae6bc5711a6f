"""Which engine runs the heavy ranker is a setting; whatever it is, the answer keeps the engine's gate."""

import numpy as np
import pytest
from pydantic import ValidationError

from contracts.probability import sigmoid
from engines.parity import BF16_GATE
from service.releases import Snapshot, load_release
from service.settings import Settings


@pytest.mark.parametrize("engine", ["auto", "openvino_fp32"])
def test_a_release_is_served_by_the_engine_of_the_settings(world, snapshot, as_built, engine):
    release = world.store.current("standard")
    paths = world.store.paths(release)
    loaded = load_release(release, paths, serving=Snapshot(), open_live=as_built, engine_threads=1, heavy_engine=engine)
    exact = snapshot.releases["standard"].heavy.serving
    heavy = loaded.heavy.serving
    assert exact.engine == "onnxruntime_cpu"
    assert heavy.engine == engine or (engine == "auto" and heavy.engine in [trial.name for trial in heavy.trials])
    ads = loaded.index.heavy_ads.take(np.arange(20))
    pair = loaded.heavy.no_pair.take(np.zeros(20, np.intp))
    query = heavy.query_encoder.encode({}, num_rows=1, event_time=None, absent="missing").encoded
    scores = [
        sigmoid(serving.score(serving.encode_request(query), ads, pair, np.zeros(20, np.int64)))
        for serving in (exact, heavy)
    ]
    np.testing.assert_allclose(scores[1], scores[0], atol=BF16_GATE.tolerance)


def test_an_unknown_engine_is_refused(tmp_path):
    with pytest.raises(ValidationError, match="heavy_engine"):
        Settings(store=tmp_path, heavy_engine="fastest")
