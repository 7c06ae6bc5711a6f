"""The ad rows that some pairs use, encoded once each.

Shapes: A ad rows in use.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from contracts.encoding import Coverage, Encoder
from contracts.records import REQUIRED_COLUMNS, plain_text
from contracts.schema import FeatureSchema
from modeling.array_files import ArrayWriter, write_texts
from modeling.log_scan import scan
from modeling.log_values import numbers, objective_codes


@dataclass(frozen=True)
class AdDefaults:
    """What an ad says where the pair says nothing.

    Args:
        bid: float32 [A], NaN where there is none.
        objective: int8 [A], codes of ``schema.objective_names``, -1 where there is none.
        coverage: Of the ad side.
    """

    bid: np.ndarray
    objective: np.ndarray
    coverage: Coverage


def encode_ads(schema: FeatureSchema, path: str, used: np.ndarray, directory: Path) -> AdDefaults:
    """Encode ad rows to files of ``directory``: ids, floats, positions.

    Args:
        schema: A fitted schema.
        path: Of ``ads/``.
        used: int64 [A], positions in the dataset, ascending.
        directory: Takes the files.

    Raises:
        LogError: A column is absent or of the wrong type, or a value breaks a rule.
    """
    encoder, required = Encoder(schema, "ad"), REQUIRED_COLUMNS["ads"]
    coverage = Coverage()
    bids, objectives, texts = [np.zeros(0, np.float32)], [np.zeros(0, np.int8)], [pa.array([], pa.string())]
    with ArrayWriter(directory) as writer:
        writer.append("ad_position", used)
        for start, table in scan(path, {*encoder.columns, "bid", "objective"}, required=required, title="Encoding ads"):
            first, last = np.searchsorted(used, (start, start + len(table)))
            table = table.take(pa.array(used[first:last] - start))
            encoded = encoder.encode(table, num_rows=len(table), source=path)
            writer.append("ad.ids", encoded.encoded.ids)
            writer.append("ad.floats", encoded.encoded.floats)
            coverage = coverage.merge(encoded.coverage)
            bids.append(numbers(table, "bid", source=path))
            objectives.append(objective_codes(table, schema, source=path))
            texts.append(plain_text(table["ad_id"]).combine_chunks())
    write_texts(directory, "ad_id", pa.concat_arrays(texts))
    return AdDefaults(np.concatenate(bids), np.concatenate(objectives), coverage)
