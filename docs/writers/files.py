"""The page of files: columns of logs, contents of bundles, indexes and releases, from the contracts' own constants."""

from collections.abc import Iterable
from typing import Any

import msgspec

from docs.writers.markdown import code, prose, table

HEAD = """# Files

Made from `contracts/` by `python -m docs.write`. Everything is Parquet, JSON, YAML, safetensors, ONNX or a plain array
(`.npy`), written aside, checked and renamed; `READY` comes last, and what lacks it is not read. Nothing is pickled.
Times are UTC.

## Logs

A directory or a glob for each dataset. A feature of the schema reads the column of its own name, a field of a sequence
the column `sequence.field`. Text may be string, large_string or dictionary; timestamps have any unit and a zone.
`adsieve validate` names the file, row group, column and rule of each fault.
"""
UPDATES = """## Updates

A line of JSON for each, given to `adsieve index update`, where times are ISO 8601 with a zone. The log holds them as
microseconds since 1970 UTC, and `seq`, the number of each. [What they do](../how-to/updates.md).
"""
UPDATE_KEYS = {
    "ad_id": "the ad, required; no index need know it yet",
    "at": "when it was decided: only compared with the times of a catalogue",
    "status": "`active`, `paused` or `removed`",
    "bid": "at least 0; null takes the bid away",
    "takedown": "`true` stops the ad until it is `false`, whatever else is said",
    "budget": "what is left of it: at 0 and below the ad is not served; null lifts the limit",
    "content": "a new or changed ad, with the keys below",
    "content.scenario": "where it is served",
    "content.valid_from": "from when on this content holds",
    "content.advertiser_id": "null where there is none",
    "content.objective": "what its bid pays for; null where there is none",
    "content.features": "raw values by column, as in `ads/`; null where there is none",
}
DATASETS = {
    "requests": "A row for each ad request, with query features and sequences.",
    "candidates": "A row for each ad in a request, sorted by request, with pair features.",
    "ads": "A row for each ad from a moment on, with ad features. One ad may have several, of different `valid_from`.",
    "outcomes": "Optional: what became of one ad in one request, joined when the log is read.",
    "truth": "Simulated logs only, and never trained on.",
}
COLUMNS = {
    "request_id": "ties the datasets together",
    "event_time": "when the request came; ads are read as they were then",
    "scenario": "surface, such as `standard` or `shopping`",
    "ad_id": "the ad",
    "stage": "furthest stage reached: `eligible`, `candidate` (reached downstream ranking), `winner` (shown)",
    "valid_from": "from when on this row holds",
    "shown": "whether the ad was shown",
    "labels_as_of": "until when outcomes were waited for",
    "release": "feedback logs: what ranked the request",
    "ads_as_of": "feedback logs: of when the ad rows are that served; joins use it instead of `event_time`",
    "bid": "of this candidate; in `ads`, its default",
    "objective": "what the bid pays for; in `ads`, its default",
    "position": "place where it was shown: a training-only feature, neutral when serving",
    "sample_weight": "weight in training",
    "explore_propensity": "how likely an ad was to be drawn that was drawn at random",
    "teacher_version": "series of the teacher that scored the row",
    "status": "`active`, `paused` or `removed`; none is active",
    "advertiser_id": "what `exclude_advertisers` filters by",
}
TASK_COLUMNS = (
    ("candidates, outcomes", "label_TASK", "what happened: null unless shown and mature, never 0 for not yet"),
    ("candidates", "teacher_TASK", "float32 logit of the teacher's per-impression probability, null until scored"),
    ("candidates", "light_TASK", "the student's, in feedback logs"),
    ("truth", "true_TASK", "the probability that the simulation drew from"),
)
BUNDLE_FILES = (
    ("manifest.json", "what it is and what made it, with size and SHA-256 of each file"),
    ("schema.yaml", "feature schema with its fitted state"),
    ("config.json", "configuration of the training"),
    ("weights.safetensors", "weights"),
    ("optimizer.safetensors", "of a student: the optimisers' states, from which the next day's training goes on"),
    ("request.onnx, ads.onnx", "of a heavy ranker: the user once a request; an ad beside an encoded user"),
    ("query_tower.onnx, pin_tower.onnx", "of a student: the two towers"),
    ("*.program.safetensors", "each graph once more, as a torch program for GPUs"),
    ("parity.safetensors", "real inputs and fp32 outputs that every engine is compared with"),
    ("requests.jsonl", "saved requests for warm-up and replay"),
    ("profile.json", "statistics of each feature in training"),
    ("slices.parquet", "of a student: its evaluation by slice"),
    ("gate.json", "of a student: what the launch gate said, or the reason of an override"),
    ("READY", "comes last"),
)
INDEX_FILES = (
    ("manifest.json", "versions of both bundles, counts, coverage, recall, watermark, size and SHA-256 of each file"),
    ("vectors.npy, bias.npy", "pin embeddings [ads, heads * dim] in fp16, fp32 or int8; fp32 biases [ads, heads]"),
    ("scales.npy", "of int8 vectors: what they are multiplied by"),
    ("ids/heads.npy, ids/tags.npy, ids/rows.npy", "table from id to row, keys compared in full"),
    ("ids/offsets.npy, ids/ids.bin", "the ids themselves, in row order"),
    ("advertisers.npy", "number of each ad's advertiser"),
    ("advertisers/*", "the advertisers' names, as `ids/`"),
    ("status.npy, bids.npy, objectives.npy, valid-from.npy", "state of each ad in the catalogue"),
    ("heavy-ids.npy, heavy-floats.npy", "with a heavy bundle: the ads' features as the heavy ranker encodes them"),
    (
        "retrieval/head-*.faiss, retrieval/head-*.npy",
        "for requests without candidates, by head: FAISS index, and the rows in it",
    ),
    ("retrieval/impression.npy, retrieval/impression-log-bids.npy", "ads that pay for being shown: rows and bids"),
    ("READY", "comes last"),
)
STORE_FILES = (
    ("bundles/*, indexes/*", "what releases are made of, by version; hard links where the file system allows"),
    ("releases/*/*.json", "a record for each release, by scenario, written once"),
    ("current/*.json", "the pointer of a scenario: the release that serves, and those before it"),
    ("copies/*.json", "the pointer once more, for the day when it cannot be read"),
    ("updates/log.json, updates/*.jsonl", "the [log of updates](../how-to/updates.md)"),
    ("updates/given, updates/surveyed", "up to where the log is known to be sound"),
    ("updates-log.json", "that there was a log of updates, should it be gone"),
    ("hosts/*", "what each host keeps beside it: overlays, and what is taken down"),
    (".lock, updates/.lock", "held by who changes something"),
)
"""Names are patterns; each is of a file relative to its directory."""


def page() -> str:
    """The whole page."""
    from contracts.bundle import BundleManifest
    from contracts.records import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
    from contracts.release import IndexManifest, Judgement, Release

    parts = [HEAD]
    for name, words in DATASETS.items():
        rows = [
            (code(column), str(kind), "required", COLUMNS[column]) for column, kind in REQUIRED_COLUMNS[name].items()
        ]
        rows += [(code(column), str(kind), "", COLUMNS[column]) for column, kind in OPTIONAL_COLUMNS[name].items()]
        own = [(code(column), "number", "", text) for where, column, text in TASK_COLUMNS if name in where]
        parts.append(f"### {name}/\n\n{words}\n\n" + table(("column", "type", "", "meaning"), rows + own))
    parts += ["## Model bundle\n", _contents(BUNDLE_FILES), _struct("manifest.json of a bundle", BundleManifest)]
    parts += ["## Index\n", _contents(INDEX_FILES), _struct("manifest.json of an index", IndexManifest)]
    parts += [UPDATES, table(("key", "meaning"), [(code(name), words) for name, words in UPDATE_KEYS.items()])]
    parts += ["## Store\n", _contents(STORE_FILES)]
    parts += ["## Release\n", _struct("The record of a release", Release), _struct("judgement", Judgement)]
    return "\n".join(parts)


def _contents(files: Iterable[tuple[str, str]]) -> str:
    return table(("file", "holds"), [(", ".join(map(code, name.split(", "))), words) for name, words in files])


def _struct(title: str, struct: type[msgspec.Struct]) -> str:
    described: Any = msgspec.inspect.type_info(struct)
    keys = ", ".join(code(field.encode_name) for field in described.fields)
    words = " ".join(prose(struct.__doc__ or "").split())
    return f"### {title}\n\n{words}\n\nKeys: {keys}.\n"
