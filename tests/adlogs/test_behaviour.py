from collections import defaultdict

import numpy as np

from adlogs.behaviour import MAX_EVENTS, MICROS_PER_DAY, Behaviour, join_sequences

CATEGORIES = np.array([0, 1, 1, 2, 0, 2, 2])
NUM_USERS = 9


def test_histories_equal_plain_lists() -> None:
    random = np.random.default_rng(2)
    behaviour = Behaviour(NUM_USERS, CATEGORIES, 3)
    plain: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step in range(40):
        count = int(random.integers(0, 30))
        users, ads = random.integers(NUM_USERS - 1, size=count), random.integers(7, size=count).astype(np.int32)
        times = step * 1_000 + random.permutation(1_000)[:count]
        behaviour.append(users, ads, times)
        for user, ad, time in zip(users.tolist(), ads.tolist(), times.tolist(), strict=True):
            plain[user].append((time, ad))
    asked = np.array([3, 8, 0, 3])  # user 8 never did anything
    found = behaviour.sequences(asked)
    expected = [sorted(plain[user])[-MAX_EVENTS:] for user in asked.tolist()]
    assert found.lengths.tolist() == [len(events) for events in expected]
    assert found.times.tolist() == [time for events in expected for time, _ in events]
    assert found.ads.tolist() == [ad for events in expected for _, ad in events]


def test_age_is_since_the_last_event_of_the_category() -> None:
    behaviour = Behaviour(2, CATEGORIES, 3)
    day = MICROS_PER_DAY
    behaviour.append(np.array([0, 0]), np.array([1, 2], dtype=np.int32), np.array([1 * day, 3 * day]))
    ages = behaviour.age_days(np.array([0, 1]), np.array([5 * day, 5 * day]))
    assert ages[0, 1] == 2.0
    assert (np.delete(ages.ravel(), 1) > 1e6).all()


def test_joined_sequences_follow_each_other() -> None:
    behaviour = Behaviour(2, CATEGORIES, 3)
    behaviour.append(np.array([0, 1, 1]), np.array([4, 5, 6], dtype=np.int32), np.array([10, 20, 30]))
    joined = join_sequences([behaviour.sequences(np.array([1])), behaviour.sequences(np.array([0]))])
    assert joined.lengths.tolist() == [2, 1]
    assert joined.ads.tolist() == [5, 6, 4]
