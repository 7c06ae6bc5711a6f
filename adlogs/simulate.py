"""Simulate an auction log whose true probabilities are known, and write it as datasets."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from adlogs.log_tables import Names, ads_table, candidates_table, requests_table, truth_table
from adlogs.presets import load_preset
from adlogs.publish import published_directory
from adlogs.simulated_rows import SimulatedDay
from adlogs.simulation import Simulation, mature
from contracts.progress import progress

_ROW_GROUPS = {"requests": 2_048, "candidates": 65_536, "truth": 65_536, "ads": 16_384}


class SimulationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, and how well the truth itself predicts the known labels of shown rows."""

    preset: str
    seed: int
    first_day: str  # ISO 8601, as the files are named
    last_day: str
    num_requests: int
    num_candidates: int
    num_ad_rows: int
    click_rate: float
    conversion_rate_after_click: float
    truth_click_log_loss: float
    truth_conversion_log_loss: float
    bid_recall: float  # share of the true top 10 by utility within the highest tenth by bid, fully logged requests

    @property
    def half_time(self) -> str:
        """The day that the later half begins with: a teacher learns from what is before it, a student from the rest."""
        first, last = date.fromisoformat(self.first_day), date.fromisoformat(self.last_day)
        return (first + timedelta(days=max(1, ((last - first).days + 1) // 2))).isoformat()


def simulate(out: Path, preset: str, seed: int | None = None) -> SimulationSummary:
    """Write requests/, candidates/, ads/, truth/ and simulation.json under `out`, which appears by one rename.

    Args:
        out: Directory to create.
        preset: Name of a world in `adlogs.presets`.
        seed: Replaces the preset's frozen seed.

    Raises:
        ConfigError: No preset has that name.
        LogError: `out` exists already.
    """
    config = load_preset(preset)
    config = config if seed is None else msgspec.structs.replace(config, seed=seed)
    simulation, tally = Simulation(config), _Tally()
    texts = Names(config.num_users, simulation.world.ads.advertiser)
    with published_directory(out) as directory:
        with progress("Simulating", total=config.num_days, unit="days") as advance:
            for day in simulation.run():
                tables = {
                    "requests": requests_table(day, simulation.world, texts),
                    "candidates": candidates_table(day, simulation.world, texts),
                    "ads": ads_table(day, simulation.world, texts),
                    "truth": truth_table(day, texts),
                }
                _write_day(directory, day.start, tables)
                tally.add(day)
                advance(1)
        summary = tally.summary(preset, config.seed)
        (directory / "simulation.json").write_text(json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    return summary


def _write_day(directory: Path, start: int, tables: dict[str, pa.Table]) -> None:
    stem = _day(start)
    for name, table in tables.items():
        (directory / name).mkdir(exist_ok=True)
        path = directory / name / f"{stem}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=_ROW_GROUPS[name])


def _day(start: int) -> str:
    return datetime.fromtimestamp(start / 1e6, tz=UTC).strftime("%Y-%m-%d")


@dataclass
class _Tally:
    """Running sums over the logged days."""

    num_requests: int = 0
    num_candidates: int = 0
    num_ad_rows: int = 0
    shown: int = 0
    clicks: float = 0.0
    mature: int = 0
    mature_clicks: float = 0.0
    conversions: float = 0.0
    click_loss: float = 0.0
    conversion_loss: float = 0.0
    bid_recalls: list[np.ndarray] = field(default_factory=list)
    days: list[str] = field(default_factory=list)

    def add(self, day: SimulatedDay) -> None:
        rows = day.candidates
        self.days.append(_day(day.start))
        self.num_requests += len(day.traffic.user)
        self.num_candidates += len(rows.ad)
        self.num_ad_rows += len(day.ads.ad)
        self.bid_recalls.append(day.bid_recalls)
        shown = ~np.isnan(rows.click)
        known = shown & mature(day.traffic.time[rows.request], day.labels_as_of)
        self.shown += int(shown.sum())
        self.mature += int(known.sum())
        self.clicks += float(rows.click[shown].sum())
        self.mature_clicks += float(rows.click[known].sum())
        self.conversions += float(rows.conversion[known].sum())
        self.click_loss += _cross_entropy(rows.click[shown], rows.true_click[shown])
        self.conversion_loss += _cross_entropy(rows.conversion[known], rows.true_conversion[known])

    def summary(self, preset: str, seed: int) -> SimulationSummary:
        return SimulationSummary(
            preset=preset,
            seed=seed,
            first_day=min(self.days),
            last_day=max(self.days),
            num_requests=self.num_requests,
            num_candidates=self.num_candidates,
            num_ad_rows=self.num_ad_rows,
            click_rate=self.clicks / self.shown,
            conversion_rate_after_click=self.conversions / self.mature_clicks,
            truth_click_log_loss=self.click_loss / self.shown,
            truth_conversion_log_loss=self.conversion_loss / self.mature,
            bid_recall=float(np.concatenate(self.bid_recalls).mean()),
        )


def _cross_entropy(label: np.ndarray, probability: np.ndarray) -> float:
    """Summed over rows."""
    return float(-(label * np.log(probability) + (1 - label) * np.log1p(-probability)).sum())
