"""Holds an answer against the plain formulas of exactly the versions that it names, and the ads as they may be seen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TOLERANCE = 2e-5
"""Of a probability: fp32 against fp64."""


@dataclass(frozen=True)
class Question:
    """A request: its query, and the pair feature of each candidate; None of both where ads are retrieved."""

    query: dict
    ids: Sequence[str] | None
    affinities: Sequence[float | None] | None

    def body(self, scenario: str, event_time: str) -> dict:
        """As it is sent."""
        body = {"scenario": scenario, "query": self.query, "event_time": event_time, "explain": True}
        return body if self.ids is None else body | {"candidates": {"ids": self.ids, "affinity": self.affinities}}

    def affinity(self, ad_id: str) -> float | None:
        """The pair feature of an ad."""
        return None if self.ids is None else dict(zip(self.ids, self.affinities, strict=True)).get(ad_id)


class Judge:
    """Tells what of an answer no state of the ads explains.

    Args:
        towers, heavies: Plain models by version.
        indexes: By version of an index, the tower that it is of and the heavy rankers that may read it.
        scenario: That is asked for.
        tasks: Of all models.
        moment_us: Of all requests.
    """

    def __init__(
        self, towers: Mapping, heavies: Mapping, *, scenario: str, tasks: Sequence[str], moment_us: int
    ) -> None:
        self.towers, self.heavies = towers, heavies
        self._scenario, self._tasks, self._moment_us = scenario, tasks, moment_us

    def faults(self, question: Question, response: Any, windows: Mapping[str, Sequence[Any]]) -> list[str]:
        """One line for each ad that is wrong.

        Args:
            windows: The states of each ad that may be seen.
        """
        if response.degraded is not None:
            return [f"degraded: {response.degraded}"]
        faults = [
            f"{ad_id}: not shown, although it is servable"
            for ad_id in sorted(set(windows) - set(response.ads.ids))
            if all(state.is_of(self._scenario) and state.is_servable for state in windows[ad_id])
        ]
        shown, (names, contents) = self._shown(response), self._contents(response.ads.ids, windows)
        light, heavy = self._expected(question, response, names, contents)
        for ad_id, ad in shown.items():
            mine = [place for place, name in enumerate(names) if name == ad_id]
            bids = [state.bid for state in windows[ad_id] if state.bid is not None]
            if not any(self._agrees(ad, contents[at][0], light[at], heavy[at], bids) for at in mine):
                faults.append(f"{ad_id}: none of {len(mine)} contents explains {ad}")
        return faults

    def _shown(self, response: Any) -> dict[str, dict[str, Any]]:
        """The columns of an answer, ad by ad."""
        ads = response.ads
        return {
            ad_id: {
                "bid": response.explain.bids[place],
                "utility": ads.utilities[place],
                "light": [ads.light[task][place] for task in self._tasks],
                "heavy": [ads.heavy[task][place] for task in self._tasks],
            }
            for place, ad_id in enumerate(ads.ids)
        }

    def _contents(self, ids: Iterable[str], windows: Mapping[str, Sequence[Any]]) -> tuple[list[str], list[tuple]]:
        """Every content that a shown ad may have, and whose it is. Whether it is servable may be of another state."""
        found: list[tuple[str, tuple]] = []
        for ad_id in ids:
            states = windows.get(ad_id, ())
            if any(state.is_servable for state in states):
                of_ad: list[tuple] = []
                for state in states:
                    if state.is_of(self._scenario) and state.content not in of_ad:
                        of_ad.append(state.content)
                found += [(ad_id, content) for content in of_ad]
        return [ad_id for ad_id, _ in found], [content for _, content in found]

    def _expected(
        self, question: Question, response: Any, names: Sequence[str], contents: Sequence[tuple]
    ) -> tuple[np.ndarray, np.ndarray]:
        if not names:
            return np.zeros((0, 0)), np.zeros((0, 0))
        versions = response.release[self._scenario]
        rows = [features for _, features in contents]
        affinities = [question.affinity(ad_id) for ad_id in names]
        light = self.towers[versions.two_tower].probabilities(question.query, self._moment_us, rows)
        heavy = self.heavies[versions.heavy].probabilities(question.query, self._moment_us, rows, affinities)
        return light, heavy

    def _agrees(
        self, ad: dict[str, Any], objective: str, light: np.ndarray, heavy: np.ndarray, bids: Sequence[float]
    ) -> bool:
        """Whether one content explains an ad's probabilities and utility, and one of its states the bid."""
        paid = 1.0 if objective == "impression" else heavy[self._tasks.index(objective)]
        return bool(
            np.abs(light - ad["light"]).max() <= TOLERANCE
            and np.abs(heavy - ad["heavy"]).max() <= TOLERANCE
            and any(abs(ad["bid"] - bid) <= 1e-6 * bid for bid in bids)
            and abs(ad["utility"] - ad["bid"] * paid) <= TOLERANCE * max(ad["bid"], 1)
        )
