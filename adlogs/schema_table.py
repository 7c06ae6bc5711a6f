"""A feature schema for people: tasks, tables, features side by side, and what is not fitted."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from contracts.schema import SIDES, Feature, FeatureSchema
from contracts.schema import Table as EmbeddingTable


def schema_table(schema: FeatureSchema) -> RenderableType:
    """What `adsieve schema show` prints."""
    objectives = ", ".join(f"{name} pays for {task or 'the impression'}" for name, task in schema.objectives.items())
    unfitted = ", ".join(schema.unfitted) or "nothing"
    facts = (
        ("tasks", " > ".join(schema.tasks)),
        ("objectives", objectives),
        ("not fitted", unfitted),
        ("fingerprint", schema.fingerprint()),
    )
    return Group(*(Text(f"{name}: {value}") for name, value in facts), _features(schema), _tables(schema))


def _features(schema: FeatureSchema) -> Table:
    table = Table("side", box=box.SIMPLE)
    table.add_column("feature", no_wrap=True)
    for heading in ("kind", "reads", "note"):
        table.add_column(heading)
    for side in SIDES:
        for name, feature in schema.side_features(side).items():
            table.add_row(side, name, feature.kind, _reads(feature), Text(feature.label or ""))
    return table


def _reads(feature: Feature) -> str:
    """What decides the encoding, such as its table or transform."""
    match feature.kind:
        case "dense":
            default = "" if feature.default is None else f", default {feature.default:g}"
            return feature.transform + default
        case "embedding":
            return f"{feature.length} numbers"
        case "sequence":
            fields = (f"{name}: {field.table or field.kind}" for name, field in (feature.fields or {}).items())
            return f"last {feature.max_length} events of {', '.join(fields)}"
        case "multi_categorical":
            return f"table {feature.table}, at most {feature.max_length}"
    return f"table {feature.table}"


def _tables(schema: FeatureSchema) -> Table:
    table = Table("table", "rows", "dim", box=box.SIMPLE)
    for name, embedding in schema.all_tables().items():
        table.add_row(name, _rows(embedding), str(embedding.dim))
    return table


def _rows(table: EmbeddingTable) -> str:
    if table.max_values is not None:
        return f"at most {table.max_values:,} values, not fitted"
    return f"{table.num_rows:,} {'hashed' if table.buckets is not None else 'values'}"
