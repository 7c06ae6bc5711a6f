"""The page of metrics: what ``/metrics`` exports, from the collectors themselves, for both roles of the service."""

from collections.abc import Iterable

from docs.writers.markdown import code, table

HEAD = """# Metrics

Made from the collectors by `python -m docs.write`. `GET /metrics` gives them in Prometheus' text format, added up over
the processes of a host; a histogram as `_bucket`, `_sum` and `_count`. A service of one process also tells by
`_created` when counters and histograms began. A host of the heavy stage (`--role heavy`) exports the same names; what
it does not do stays 0.
"""
SUFFIX = {"counter": "_total"}


def page() -> str:
    """The whole page."""
    rows = [(code(name), kind, ", ".join(map(code, labels)), text) for name, kind, labels, text in described()]
    return HEAD + "\n" + table(("metric", "kind", "labels", "meaning"), rows)


def described() -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name as exported, kind, labels and help of each metric, by name."""
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.registry import Collector

    from service.telemetry import Telemetry

    found, telemetry = [], Telemetry()
    telemetry.serving.log_readable(True)  # told once the log of updates was looked for
    collectors: Iterable[Collector] = telemetry._registry._collector_to_names
    for collector in collectors:
        if isinstance(collector, MetricWrapperBase):
            name, kind = collector._name + SUFFIX.get(collector._type, ""), collector._type
            found.append((name, kind, tuple(collector._labelnames), collector._documentation))
        else:
            found += [(one.name, one.type, tuple(one._labelnames), one.documentation) for one in collector.collect()]
    return sorted(found)
