"""Where replicas should be instead: plans for an operator, as changes of partitions' keys.

A plan only says which replicas a partition should have and in which order; the first is its preferred leader.
The leaders do the rest while they serve: copy, add, hand over, drop. Pure arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from penstock.cluster.partitions import PartitionKey, PartitionState
from penstock.cluster.placement import shares_rack

Plan = dict[PartitionKey, PartitionState]


def lead_from(state: PartitionState, broker: int) -> PartitionState:
    """Make `broker`, one of the replicas, the preferred leader."""
    if broker not in state.replicas:
        raise ValueError(f"broker {broker} has no replica; it is on {list(state.replicas)}")
    others = tuple(each for each in state.replicas if each != broker)
    return replace(state, replicas=(broker, *others), reason=f"leader moved to {broker}")


def drained(
    states: Mapping[PartitionKey, PartitionState], racks: Mapping[int, str | None], broker: int
) -> Plan:
    """Take every replica off `broker`: to another rack than the rest's if there is one, there to whoever has
    least; if all have one, just fewer."""
    holds = Counter(each for state in states.values() for each in state.replicas)
    others = {each: rack for each, rack in racks.items() if each != broker}
    plan: Plan = {}
    for key, state in sorted(states.items()):
        if broker not in state.brokers:
            continue
        kept = [each for each in state.replicas if each != broker]
        _fill_up(kept, len(state.replicas), others, holds)  # one, if it is not on its way already
        if not kept:
            raise ValueError(f"partition {key[1]} of {key[0].hex()} has nowhere to go")
        plan[key] = replace(state, replicas=tuple(kept), reason=f"broker {broker} is drained")
    return plan


def rebalanced(
    states: Mapping[PartitionKey, PartitionState],
    racks: Mapping[int, str | None],
    wanted: Mapping[PartitionKey, int],
) -> Plan:
    """Add replicas where there are fewer than wanted, then move replicas, then leaders, until every partition
    is in as many racks as it can be, and everybody's share is the same within one, or as near to that as the
    racks allow."""
    plan = {key: list(state.replicas) for key, state in sorted(states.items())}
    holds = Counter(dict.fromkeys(racks, 0))
    holds.update(each for replicas in plan.values() for each in replicas)
    for key, replicas in plan.items():
        _fill_up(replicas, wanted.get(key, 0), racks, holds)
    while sum(_moved_one(replicas, racks, holds) for replicas in plan.values()):
        pass  # every move spreads a partition wider, or evens shares out: it ends
    leads = Counter(dict.fromkeys(racks, 0))
    leads.update(replicas[0] for replicas in plan.values())
    for replicas in plan.values():
        poorest = min(replicas, key=lambda each: (leads[each], each))
        if leads[replicas[0]] - leads[poorest] > 1:
            leads[replicas[0]] -= 1
            leads[poorest] += 1
            replicas.remove(poorest)
            replicas.insert(0, poorest)
    return {
        key: replace(states[key], replicas=tuple(replicas), reason="rebalanced")
        for key, replicas in plan.items()
        if tuple(replicas) != states[key].replicas
    }


def _fill_up(replicas: list[int], count: int, racks: Mapping[int, str | None], holds: Counter[int]) -> None:
    """Add replicas until there are `count`, or everybody has one."""
    while len(replicas) < count:
        free = [each for each in racks if each not in replicas]
        if not free:
            return
        chosen = min(free, key=lambda each: (shares_rack(racks, each, replicas), holds[each], each))
        holds[chosen] += 1
        replicas.append(chosen)


def _moved_one(replicas: list[int], racks: Mapping[int, str | None], holds: Counter[int]) -> bool:
    """Put one replica of a partition, its leader last, where it is better off, if there is such a place."""
    for at in range(len(replicas) - 1, -1, -1):
        here, others = replicas[at], replicas[:at] + replicas[at + 1 :]
        best = min(
            (each for each in racks if each not in replicas),
            key=lambda each: (shares_rack(racks, each, others), holds[each], each),
            default=None,
        )
        if best is None:
            return False
        wider = shares_rack(racks, here, others) - shares_rack(racks, best, others)
        if wider > 0 or (wider == 0 and holds[here] - holds[best] > 1):
            holds[here] -= 1
            holds[best] += 1
            replicas[at] = best
            return True
    return False
