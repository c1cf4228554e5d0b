"""Where replicas go: leaders spread over brokers, replicas over brokers and racks.

Pure arithmetic on what is there now. A partition's first replica is its preferred leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from penstock.wire.errors import ErrorCode, KafkaError


def place(
    racks: Mapping[int, str | None],
    partitions: int,
    replication: int,
    existing: Iterable[Sequence[int]] = (),
) -> list[tuple[int, ...]]:
    """Replicas for new partitions on the brokers in `racks`, given what the brokers have already."""
    if not 1 <= replication <= len(racks):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"replication factor {replication}: {_count(len(racks))} here, so it can be 1 to {len(racks)}",
        )
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    for replicas in existing:
        leads.update(replicas[:1])
        holds.update(replicas)
    placed = []
    for _ in range(partitions):
        first = min(racks, key=lambda broker: (leads[broker], holds[broker], broker))
        chosen = [first]
        while len(chosen) < replication:
            chosen.append(
                min(
                    (broker for broker in racks if broker not in chosen),
                    key=lambda broker: (
                        shares_rack(racks, broker, chosen),
                        holds[broker],
                        (broker - first) % (max(racks) + 1),
                    ),
                )
            )
        leads[first] += 1
        holds.update(chosen)
        placed.append(tuple(chosen))
    return placed


def shares_rack(racks: Mapping[int, str | None], broker: int, others: Iterable[int]) -> bool:
    """Whether one of `others` would be lost with `broker`'s rack; without a rack it is one of its own."""
    rack = racks.get(broker)
    return rack is not None and any(racks.get(other) == rack for other in others)


def _count(brokers: int) -> str:
    return "there is one broker" if brokers == 1 else f"there are {brokers} brokers"
