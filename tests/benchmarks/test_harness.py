"""What every benchmark prints."""

import argparse
import json

import numpy as np

from benchmarks.harness import Target, finish


def test_a_report_of_numpy_scalars_is_json(capsys):
    figures = {"median": np.float32(0.5), "rows": np.int64(3), "shared": np.True_}
    finish(argparse.Namespace(json=True, check=False), figures, [Target("median", np.float64(0.5), at_most=1.0)])
    told = json.loads(capsys.readouterr().out)
    assert told["figures"] == {"median": 0.5, "rows": 3, "shared": True}
    assert told["targets"][0]["met"] is True
