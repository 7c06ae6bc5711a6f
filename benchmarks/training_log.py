"""The log that the training benchmark learns from: the ``demo`` world's winners, eight a request, with long histories.

The world has two behaviour sequences; the published model reads three of 50 events. A third one repeats the clicks, and
all take up to 50 events: about 29, 29 and 4 of them are filled.
"""

from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from adlogs.fit import fit_log, named_schema
from adlogs.simulate import simulate
from contracts.records import LogPaths, dataset_files
from contracts.schema import FeatureSchema, load_schema, save_schema
from heavy_ranker.data import read_impressions
from modeling.examples import Examples

EVENTS = 50
SOURCE, COPY = "recent_clicks", "recent_views"


def training_log(directory: Path, preset: str = "demo") -> tuple[FeatureSchema, LogPaths, Examples]:
    """Schema, log and encoded winners; made in an empty directory, found again in one that has them.

    A schema file ``schema.yaml`` beside the log is what the command line trains with.
    """
    if not (directory / "schema.yaml").exists():
        simulate(directory / "log", preset)
        _repeat_clicks(directory / "log" / "requests")
        fitted = fit_log(_long_histories(named_schema("simulated_heavy")), _paths(directory), until=None)
        save_schema(fitted, directory / "schema.yaml")
    schema = load_schema(directory / "schema.yaml")
    return schema, _paths(directory), read_impressions(schema, _paths(directory), directory / "examples")


def _paths(directory: Path) -> LogPaths:
    return LogPaths.under(directory / "log")


def _long_histories(schema: FeatureSchema) -> FeatureSchema:
    features = {
        name: msgspec.structs.replace(feature, max_length=EVENTS) if feature.kind == "sequence" else feature
        for name, feature in schema.features.items()
    }
    return msgspec.structs.replace(schema, features=features | {COPY: features[SOURCE]})


def _repeat_clicks(requests: Path) -> None:
    for file in dataset_files(requests):
        table = pq.read_table(file)
        for name in table.column_names:
            if name.startswith(f"{SOURCE}."):
                table = table.append_column(name.replace(SOURCE, COPY), table[name])
        pq.write_table(table, file, compression="zstd")
