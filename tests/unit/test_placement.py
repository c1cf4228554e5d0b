"""Where replicas are put, and where plans move them: spread over brokers, and over racks first."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from penstock.cluster.partitions import Member, PartitionKey, PartitionState
from penstock.cluster.placement import place
from penstock.cluster.plans import Plan, drained, rebalanced

TWO_RACKS: Mapping[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}
NO_RACKS: Mapping[int, str | None] = dict.fromkeys(range(1, 5))


def states(placed: Iterable[Sequence[int]]) -> dict[PartitionKey, PartitionState]:
    return {
        (b"t", index): PartitionState(replicas[0], 0, tuple(replicas), ())
        for index, replicas in enumerate(placed)
    }


def after(before: Mapping[PartitionKey, PartitionState], plan: Plan) -> list[tuple[int, ...]]:
    return [(plan.get(key) or state).replicas for key, state in before.items()]


def span(racks: Mapping[int, str | None], replicas: Sequence[int]) -> int:
    """How many racks a partition is in; a broker without one is a rack of its own."""
    return len({racks[broker] or broker for broker in replicas})


def is_even(shares: Iterable[int]) -> bool:
    found = list(shares)
    return max(found) - min(found) <= 1


@pytest.mark.parametrize("replication", [1, 2, 3, 4])
def test_new_partitions_are_in_as_many_racks_as_there_are(replication: int) -> None:
    placed = place(TWO_RACKS, 12, replication)
    assert all(len(set(replicas)) == replication for replicas in placed)
    assert all(span(TWO_RACKS, replicas) == min(2, replication) for replicas in placed)
    assert is_even(Counter(replicas[0] for replicas in placed)[broker] for broker in TWO_RACKS)


def test_brokers_without_a_rack_are_apart_from_each_other() -> None:
    racks = {1: "a", 2: "a", 3: None, 4: None}
    assert all(span(racks, replicas) == 3 for replicas in place(racks, 12, 3))


def test_a_drained_brokers_replicas_go_to_a_rack_that_has_none_although_others_have_less() -> None:
    # 2 has nothing, but is in the rack of the replica that stays.
    before = states([(1, 3), (3, 1), (1, 4), (3, 4), (4, 3)])
    found = after(before, drained(before, TWO_RACKS, 3))
    assert all(3 not in replicas for replicas in found)
    assert found[:3] == [(1, 4), (1, 4), (1, 4)]
    assert all(span(TWO_RACKS, replicas) == 2 for replicas in found)


def test_draining_the_last_of_a_rack_keeps_the_number_of_replicas() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    before = states([(1, 3), (3, 2)])
    assert after(before, drained(before, racks, 3)) == [(1, 2), (2, 1)]


def test_a_broker_that_is_gone_can_be_drained() -> None:
    racks = {1: "a", 2: "a", 4: "b"}
    before = states([(3, 1), (1, 3)])
    assert after(before, drained(before, racks, 3)) == [(1, 4), (1, 4)]


def test_a_drain_waits_for_what_is_moved_away_already_and_moves_it_nowhere_else() -> None:
    (before,) = states([(1, 2)]).values()
    moving = {(b"t" * 16, 0): replace(before, in_sync=(Member(1, 7), Member(3, 9)))}
    (found,) = drained(moving, {1: "a", 2: "a", 3: "a", 4: "a"}, 3).values()
    assert found.replicas == (1, 2)


def test_rebalancing_over_a_new_broker_leaves_every_partition_in_two_racks() -> None:
    old = {1: "a", 2: "b", 3: "b"}
    before = states(place(old, 12, 2))
    racks = {**old, 4: "b"}
    found = after(before, rebalanced(before, racks, {}))
    assert all(span(racks, replicas) == 2 for replicas in found)
    holds = Counter(broker for replicas in found for broker in replicas)
    assert holds[1] == 12, "the only one of its rack"
    assert is_even(holds[broker] for broker in (2, 3, 4))


def test_rebalancing_takes_partitions_apart_that_are_in_one_rack() -> None:
    before = states([(1, 2), (1, 2), (3, 4), (4, 3)])  # even already
    found = after(before, rebalanced(before, TWO_RACKS, {}))
    assert all(span(TWO_RACKS, replicas) == 2 for replicas in found)
    assert is_even(Counter(broker for replicas in found for broker in replicas)[each] for each in TWO_RACKS)


def test_what_is_even_and_spread_is_not_moved() -> None:
    before = states(place(TWO_RACKS, 12, 2))
    assert rebalanced(before, TWO_RACKS, {}) == {}


@pytest.mark.parametrize("seed", range(50))
def test_rebalancing_anything_evens_it_out_and_narrows_no_partition(seed: int) -> None:
    chance = random.Random(seed)
    brokers = range(1, chance.randint(3, 8))
    racks = {broker: chance.choice(["a", "b", "c", None]) for broker in brokers}
    before = states(
        chance.sample(brokers, chance.randint(1, min(3, len(brokers)))) for _ in range(chance.randint(1, 30))
    )
    for where in (racks, dict.fromkeys(brokers)):
        found = after(before, rebalanced(before, where, {}))
        for state, replicas in zip(before.values(), found, strict=True):
            assert len(set(replicas)) == len(state.replicas)
            possible = len({where[broker] or broker for broker in brokers})
            assert span(where, replicas) == min(possible, len(replicas))
    holds = Counter(broker for replicas in found for broker in replicas)
    assert is_even(holds[broker] for broker in brokers), "without racks nothing is in the way"


def test_rebalancing_fills_up_what_was_drained_off_a_broker() -> None:
    racks: Mapping[int, str | None] = {1: "a", 2: "b", 3: "c"}
    before = states(place(racks, 6, 3))
    wanted = dict.fromkeys(before, 3)
    out = drained(before, racks, 2)
    assert after(before, out) == [tuple(each for each in s.replicas if each != 2) for s in before.values()]
    without = {1: "a", 3: "c"}
    assert all(len(each) == 2 for each in after(out, rebalanced(out, without, wanted))), "nowhere to put more"
    found = after(out, rebalanced(out, racks, wanted))
    assert all(set(replicas) == {1, 2, 3} for replicas in found)
    assert is_even(Counter(replicas[0] for replicas in found)[broker] for broker in racks)


def test_what_is_filled_up_goes_to_another_rack_and_to_whoever_has_least() -> None:
    before = states([(1,), (1,), (3,), (2, 4)])
    found = after(before, rebalanced(before, TWO_RACKS, dict.fromkeys(before, 2)))
    assert all(len(set(replicas)) == 2 and span(TWO_RACKS, replicas) == 2 for replicas in found)
    assert is_even(Counter(each for replicas in found for each in replicas)[broker] for broker in TWO_RACKS)


def test_what_has_more_than_wanted_keeps_it() -> None:
    before = states(place(NO_RACKS, 4, 3))
    assert rebalanced(before, NO_RACKS, dict.fromkeys(before, 2)) == {}
