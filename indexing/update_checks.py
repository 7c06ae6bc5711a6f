"""Content of updates, checked before it is taken: against the schemas of what serves its scenario now."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from contracts.bundle import Bundle, open_bundle
from contracts.config_errors import one_of, show
from contracts.encoding import Encoder
from contracts.errors import InputError, LogError
from indexing.overlay_content import OF_RECORD, NewAd, content_table
from indexing.stores import Store
from indexing.update_record import Update

_BATCH = 4096


@dataclass
class ContentChecks:
    """Checks content against the current release of its scenario.

    Args:
        store: Where the releases are.
        unread: Names of features that no current model reads; they are kept for the ones to come.
        left_out: What columns of the input are that no feature can be read from, by name.
        passed_over: How many rows of datasets were of scenarios without a release, by scenario.
    """

    store: Store
    unread: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)
    passed_over: "Counter[str]" = field(default_factory=Counter)
    _encoders: dict[str, tuple[list[Encoder], tuple[str, ...]]] = field(default_factory=dict)

    def check(self, updates: Sequence[tuple[str, Update]]) -> None:
        """Refuse content that the scenario's models could not take.

        Args:
            updates: With where each stands.

        Raises:
            InputError: A scenario without a release, absent columns, an unknown objective, or a value of a wrong type
                or that is not finite; the message says where.
        """
        by_scenario: dict[str, list[tuple[str, Update]]] = {}
        for where, update in updates:
            if update.content is not None:
                by_scenario.setdefault(update.content.scenario, []).append((where, update))
        for scenario, mine in by_scenario.items():
            encoders, objectives = self._of(scenario, mine[0][0])
            needed = {column for encoder in encoders for column in encoder.columns} - set(OF_RECORD)
            self._check_fields(mine, needed, objectives)
            for start in range(0, len(mine), _BATCH):
                _check_values(mine[start : start + _BATCH], encoders, sorted(needed))

    def of_served(self, rows: Iterable[tuple[str, Update]]) -> Iterator[tuple[str, Update]]:
        """The rows of an ads dataset but for those of scenarios without a release, which are counted."""
        known = self.store.scenarios()
        for where, update in rows:
            if update.content is not None and update.content.scenario not in known:
                self.passed_over[update.content.scenario] += 1
            else:
                yield where, update

    def told_passed_over(self) -> str | None:
        """What to tell of the rows that were passed over.

        Example:
            >>> from indexing.stores import open_store
            >>> ContentChecks(open_store("s"), passed_over=Counter(standard=1200, video=2)).told_passed_over()
            '1,202 rows of scenarios without a release are passed over: "standard" (1,200), "video" (2)'
        """
        if not self.passed_over:
            return None
        counts = ", ".join(f"{show(name)} ({number:,})" for name, number in sorted(self.passed_over.items()))
        return f"{self.passed_over.total():,} rows of scenarios without a release are passed over: {counts}"

    def _of(self, scenario: str, where: str) -> tuple[list[Encoder], tuple[str, ...]]:
        if scenario not in self._encoders:
            release = self.store.current(scenario) if scenario in self.store.scenarios() else None
            if release is None:
                known = self.store.scenarios()
                expected = f"expected {one_of(known)}" if known else "the store has no release at all"
                raise InputError(f"{where}: content.scenario: {show(scenario)} has no release, {expected}")
            paths = self.store.paths(release)
            bundles: list[Bundle] = [open_bundle(paths.two_tower, verify=False)]
            if paths.heavy is not None:
                bundles.append(open_bundle(paths.heavy, verify=False))
            encoders = [Encoder(bundle.schema, "ad") for bundle in bundles]
            self._encoders[scenario] = encoders, bundles[0].schema.objective_names
        return self._encoders[scenario]

    def _check_fields(self, updates: Iterable[tuple[str, Update]], needed: set[str], objectives: Sequence[str]) -> None:
        for where, update in updates:
            content = update.content
            if content is None:
                continue
            lacking = sorted(needed - content.features.keys())
            for name in lacking:
                if name in self.left_out:
                    raise InputError(f"{self.left_out[name]}, which the models of this scenario cannot read")
            if lacking:
                raise InputError(f"{where}: content.features: lacks {lacking}, which the models of this scenario read")
            if content.objective is not None and content.objective not in objectives:
                got = f"got {show(content.objective)}"
                raise InputError(f"{where}: content.objective: expected null or {one_of(objectives)}, {got}")
            self.unread |= content.features.keys() - needed


def _check_values(updates: Sequence[tuple[str, Update]], encoders: Sequence[Encoder], columns: Sequence[str]) -> None:
    """Encode all together; where that finds a fault, each alone, so that the message can say where it stands."""
    if _fault(updates, encoders, columns) is None:
        return
    for one in updates:
        fault = _fault([one], encoders, columns)
        if fault is not None:
            raise InputError(f"{one[0]}: content.features: {fault}")


def _fault(updates: Sequence[tuple[str, Update]], encoders: Sequence[Encoder], columns: Sequence[str]) -> str | None:
    ads = [NewAd(update.ad_id, 0, update.content) for _, update in updates if update.content is not None]
    try:
        table = content_table(ads, columns)
        for encoder in encoders:
            encoder.encode(table)
    except LogError as error:
        return str(error)
    return None
