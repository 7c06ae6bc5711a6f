"""The simulated world in motion.

Days pass in four blocks. Within a block histories, bids and the catalogue stand still; between blocks, clicks and
conversions that became known enter the histories. Statistics of the past change at midnight UTC. Each request draws a
pool of eligible ads, the logged policy narrows it, and users click and convert by the true probabilities.

Shape letters: R requests, P ads in a pool, N logged pairs.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from adlogs import names
from adlogs.auction import WINNER, Funnel, Outcome, run_policy, true_utility
from adlogs.behaviour import MICROS_PER_DAY, Behaviour, Sequences, join_sequences
from adlogs.counters import PastCounts
from adlogs.presets import SimulationConfig
from adlogs.simulated_rows import AdRows, CandidateRows, SimulatedDay, concatenate, in_request_order
from adlogs.traffic import Traffic, draw_traffic
from adlogs.truth import RequestState, Truth, true_probabilities
from adlogs.world import BLOCKS_PER_DAY, advance_day, build_world, change_bids

LOG_START = int(datetime(2025, 3, 3, tzinfo=UTC).timestamp()) * 1_000_000  # a Monday, microseconds
_BLOCK_MICROS = MICROS_PER_DAY // BLOCKS_PER_DAY
_HOUR_MICROS = MICROS_PER_DAY // 24
_ATTRIBUTION_HOURS = 36.0  # a conversion counts within this time; before it has passed its label is null
_DELAY_HOURS = 8.0  # scale of the time from click to conversion
_EXPORT_LAG = MICROS_PER_DAY  # the log is exported so long after its end
_TYPICAL_CLICK, _TYPICAL_CONVERSION = 0.03, 0.004  # rates over all eligible ads
_BID_CHANGE_SHARE = (0.25, 0.0, 0.03, 0.0)  # share of live ads whose bid moves at the start of each block


class Simulation:
    """A world in motion; `run` yields the logged days and may be called once."""

    def __init__(self, config: SimulationConfig) -> None:
        self._config = config
        self._rng = np.random.default_rng(config.seed)
        self.world = build_world(config, self._rng)
        ads, num_users, num_categories = self.world.ads, config.num_users, len(names.CATEGORIES)
        self._clicks = Behaviour(num_users, ads.category, num_categories)
        self._conversions = Behaviour(num_users, ads.category, num_categories)
        num_advertisers = len(self.world.advertiser_size)
        self._advertiser_clicks = np.zeros((num_users, num_advertisers), dtype=np.int32)
        self._counts = PastCounts(num_users, ads.advertiser, num_advertisers)
        self._pending: list[np.ndarray] = []  # conversions on their way: int64 [3, n], user, ad, time
        self._labels_as_of = LOG_START + config.num_days * MICROS_PER_DAY + _EXPORT_LAG
        self._seed_histories()

    def run(self) -> Iterator[SimulatedDay]:
        """Simulate the warm-up unseen, then yield each logged day."""
        for number in range(-self._config.warmup_days, self._config.num_days):
            day = self._run_day(number)
            if number >= 0:
                yield day

    def _run_day(self, number: int) -> SimulatedDay:
        advance_day(self.world, self._rng)
        self._counts.end_day()
        start = LOG_START + number * MICROS_PER_DAY
        traffic = draw_traffic(self.world, start, self._config.requests_per_day, self._rng)
        full = self._choose_full(traffic, number)
        activity, user_ctr = self._counts.user_activity()[traffic.user], self._counts.user_ctr()[traffic.user]
        ad_rows: list[AdRows] = []
        histories: list[tuple[Sequences, Sequences]] = []
        groups: list[tuple[CandidateRows, np.ndarray]] = []
        for block in range(BLOCKS_PER_DAY):
            block_start = start + block * _BLOCK_MICROS
            block_number = (number + self._config.warmup_days) * BLOCKS_PER_DAY + block
            self._deliver_conversions(block_start)
            ad_rows.append(self._change_ads(block_number, block_start))
            first, last = np.searchsorted(traffic.time, [block_start, block_start + _BLOCK_MICROS])
            users = traffic.user[first:last]
            histories.append((self._clicks.sequences(users), self._conversions.sequences(users)))
            groups += self._run_block(traffic, np.arange(first, last), full, block_number)
        self._counts.count_requests(traffic.user)
        return SimulatedDay(
            number=number,
            start=start,
            traffic=traffic,
            activity=activity,
            user_ctr=user_ctr,
            clicks=join_sequences([clicks for clicks, _ in histories]),
            conversions=join_sequences([conversions for _, conversions in histories]),
            labels_as_of=self._labels_as_of,
            candidates=in_request_order([rows for rows, _ in groups]),
            ads=concatenate(ad_rows),
            bid_recalls=np.concatenate([recalls for _, recalls in groups]),
        )

    def _choose_full(self, traffic: Traffic, number: int) -> np.ndarray:
        """Which requests log their whole pool, bool [R]: some of the last day, equally many of each scenario."""
        full = np.zeros(len(traffic.user), dtype=bool)
        if number == self._config.num_days - 1:
            for scenario in range(len(names.SCENARIOS)):
                members = np.flatnonzero(traffic.scenario == scenario)
                full[self._rng.choice(members, size=self._config.full_requests, replace=False)] = True
        return full

    def _run_block(
        self, traffic: Traffic, block: np.ndarray, full: np.ndarray, block_number: int
    ) -> list[tuple[CandidateRows, np.ndarray]]:
        """Serve the requests of a block (rows of `traffic`); what users do counts from the next block on.

        Returns:
            The logged pairs of each group of requests, and the recalls by bid of its fully logged requests.
        """
        config, served = self._config, []
        ordinary = Funnel(
            num_candidates=config.num_candidates,
            num_winners=config.num_winners,
            explore_rate=config.explore_rate,
            logged_candidates=config.logged_candidates,
            logged_eligible=config.logged_eligible,
        )
        whole = Funnel(
            num_candidates=config.full_candidates, num_winners=config.num_winners, explore_rate=config.explore_rate
        )
        for scenario in range(len(names.SCENARIOS)):
            live = self.world.live(scenario, block_number)
            of_scenario = block[traffic.scenario[block] == scenario]
            some, all_of_pool = of_scenario[~full[of_scenario]], of_scenario[full[of_scenario]]
            rows, _ = self._serve(traffic, some, live, config.pool, ordinary)
            served.append((rows, np.empty(0)))
            served.append(self._serve(traffic, all_of_pool, live, config.full_pool, whole))
        for rows, _ in served:
            self._remember(traffic, rows, block_number)
        return served

    def _serve(
        self, traffic: Traffic, members: np.ndarray, live: np.ndarray, pool_size: int, funnel: Funnel
    ) -> tuple[CandidateRows, np.ndarray]:
        """Serve requests of one kind; returns the logged pairs and the recall of ranking by bid, [R]."""
        user, rng = traffic.user[members], self._rng
        lottery = rng.random((len(members), len(live)), dtype=np.float32)
        pool = np.argpartition(lottery, pool_size - 1, axis=1)[:, :pool_size]
        ads = live[pool]
        advertiser_clicks = self._advertiser_clicks[user]
        state = RequestState(
            user=user,
            hour=traffic.hour[members],
            click_age_days=self._clicks.age_days(user, traffic.time[members]),
            conversion_age_days=self._conversions.age_days(user, traffic.time[members]),
            advertiser_clicks=advertiser_clicks,
        )
        truth = true_probabilities(self.world, state, live, pool)
        bid = self.world.ads.bid[ads] * np.exp(0.1 * rng.standard_normal(ads.shape))
        utility = true_utility(truth, bid, self.world.ads.objective[ads])
        typical = Truth(click=np.full(ads.shape, _TYPICAL_CLICK), conversion=np.full(ads.shape, _TYPICAL_CONVERSION))
        expected = true_utility(typical, bid, self.world.ads.objective[ads])
        outcome = run_policy(expected, utility, funnel, rng)
        pair_clicks = np.take_along_axis(advertiser_clicks, self.world.ads.advertiser[ads], axis=1)
        rows = self._log(traffic, members, ads, bid, pair_clicks, truth, outcome)
        return rows, _bid_recall(utility, bid)

    def _log(
        self,
        traffic: Traffic,
        members: np.ndarray,
        ads: np.ndarray,
        bid: np.ndarray,
        pair_clicks: np.ndarray,
        truth: Truth,
        outcome: Outcome,
    ) -> CandidateRows:
        """Draw what users did with the shown ads, and flatten the logged part of [R, P] arrays into N pairs."""
        shown = outcome.stage == WINNER
        click = np.where(shown, self._rng.random(ads.shape) < truth.click, np.nan)
        after_click = truth.conversion / truth.click
        conversion = np.where(shown, (self._rng.random(ads.shape) < after_click) * click, np.nan)
        logged = outcome.logged
        return CandidateRows(
            request=np.repeat(members, logged.sum(axis=1)),
            ad=ads[logged],
            stage=outcome.stage[logged],
            bid=bid[logged],
            advertiser_clicks=pair_clicks[logged],
            position=outcome.position[logged],
            click=click[logged],
            conversion=conversion[logged],
            weight=outcome.weight[logged],
            propensity=outcome.propensity[logged],
            true_click=truth.click[logged],
            true_conversion=truth.conversion[logged],
        )

    def _remember(self, traffic: Traffic, rows: CandidateRows, block_number: int) -> None:
        """Let shown ads, clicks and coming conversions of a block enter the state."""
        shown = ~np.isnan(rows.click)
        users, ads, clicked = traffic.user[rows.request[shown]], rows.ad[shown], rows.click[shown] == 1
        self._counts.count_impressions(users, ads, clicked)
        block_end = self._block_start(block_number + 1)
        delay = self._rng.integers(3_000_000, 90_000_000, size=clicked.sum())
        times = np.minimum(traffic.time[rows.request[shown]][clicked] + delay, block_end - 1_000)
        self._clicks.append(users[clicked], ads[clicked], times)
        np.add.at(self._advertiser_clicks, (users[clicked], self.world.ads.advertiser[ads[clicked]]), 1)
        converted = rows.conversion[shown][clicked] == 1
        waits = _conversion_delays(int(converted.sum()), self._rng)
        events = [users[clicked][converted], ads[clicked][converted], times[converted] + waits]
        self._pending.append(np.stack(events).astype(np.int64))

    def _deliver_conversions(self, now: int) -> None:
        """Conversions that happened before `now` become known."""
        if not self._pending:
            return
        events = np.concatenate(self._pending, axis=1)
        known = events[2] < now
        users, ads, times = events[:, known]
        self._conversions.append(users, ads.astype(np.int32), times)
        self._counts.count_conversions(ads)
        self._pending = [events[:, ~known]]

    def _change_ads(self, block_number: int, start: int) -> AdRows:
        """Start a block: pause, create and re-bid ads. Logs all live ads at midnight, otherwise what changed."""
        ads, block = self.world.ads, block_number % BLOCKS_PER_DAY
        live = np.flatnonzero((ads.created <= block_number) & (ads.paused > block_number))
        changed = change_bids(self.world, live, _BID_CHANGE_SHARE[block], self._rng)
        fresh = live[ads.created[live] == block_number]
        active = live if block == 0 else np.union1d(changed, fresh)
        stopped = np.flatnonzero((ads.paused == block_number) & (ads.created < block_number))
        rows = np.concatenate([active, stopped])
        created = np.array([self._block_start(block) for block in ads.created[rows]], dtype=np.int64)
        return AdRows(
            ad=rows,
            valid_from=np.full(len(rows), start),
            active=np.arange(len(rows)) < len(active),
            bid=ads.bid[rows],
            age_days=(start - created) / MICROS_PER_DAY,
            impressions=self._counts.ad_impressions[rows],
            ctr=self._counts.ad_ctr()[rows],
            cvr=self._counts.ad_cvr()[rows],
            advertiser_ctr=self._counts.advertiser_ctr()[rows],
        )

    def _block_start(self, block_number: int) -> int:
        return LOG_START + (block_number - self._config.warmup_days * BLOCKS_PER_DAY) * _BLOCK_MICROS

    def _seed_histories(self) -> None:
        """Give users a past: each event is the best of two dozen ads of the old stock, up to a month ago."""
        rng, users, ads = self._rng, self.world.users, self.world.ads
        mean = 16.0 * users.activity / users.activity.mean()
        count = np.minimum(rng.poisson(mean), 45)
        user = np.repeat(np.arange(len(count)), count)
        choices = rng.choice(np.flatnonzero(ads.created <= 0), size=(len(user), 24))
        match = np.einsum("nmd,nkd->nmk", users.tastes[user], ads.latent[choices]).max(axis=1)
        appeal = 3.0 * match + ads.quality[choices] + rng.gumbel(size=choices.shape)
        ad = np.take_along_axis(choices, appeal.argmax(axis=1)[:, None], axis=1)[:, 0]
        age = rng.uniform(0.0, 30.0, size=len(user)) * MICROS_PER_DAY
        time = self._block_start(0) - 1_000 - age.astype(np.int64)
        self._clicks.append(user, ad.astype(np.int32), time)
        bought = rng.random(len(user)) < 0.12
        self._conversions.append(user[bought], ad[bought].astype(np.int32), time[bought])
        np.add.at(self._advertiser_clicks, (user, ads.advertiser[ad]), 1)


def mature(times: np.ndarray, labels_as_of: int) -> np.ndarray:
    """Whether the conversions of requests at these times (microseconds UTC) are all known, bool."""
    return times + int(_ATTRIBUTION_HOURS * _HOUR_MICROS) <= labels_as_of


def _conversion_delays(count: int, rng: np.random.Generator) -> np.ndarray:
    """Exponential waiting times cut at the attribution window, int64 microseconds."""
    reach = 1.0 - np.exp(-(_ATTRIBUTION_HOURS - 0.1) / _DELAY_HOURS)
    hours = -_DELAY_HOURS * np.log1p(-reach * rng.random(count))
    return (hours * _HOUR_MICROS).astype(np.int64)


def _bid_recall(utility: np.ndarray, bid: np.ndarray) -> np.ndarray:
    """Share of each pool's true top 10 that is within the highest tenth by bid, [R]."""
    kept = utility.shape[1] // 10
    best = np.argsort(-utility, axis=1)[:, :10]
    rank = np.argsort(np.argsort(-bid, axis=1), axis=1)
    return (np.take_along_axis(rank, best, axis=1) < kept).mean(axis=1)
