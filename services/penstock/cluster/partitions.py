"""A partition as the cluster agrees on it: one key, one value, changed by compare-and-swap only.

    /partitions/<topic id, hex>/<number>   leader, epoch, replicas, in-sync set

The functions at the end are the rules of elections as plain arithmetic on that value; `docs/replication.md`
has the argument. No key: nobody has led yet, so nobody has acknowledged anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from penstock.cluster.metadata import Versioned

PREFIX: Final = "/partitions/"
NOBODY: Final = -1

PartitionKey = tuple[bytes, int]


class Member(NamedTuple):
    """A replica with its log: the same broker with another storage is another member (rule R1)."""

    broker: int
    storage: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[Member, ...]
    revision: int = 0
    reason: str = ""
    """Why the last change was made, for people."""
    declared: int = NOBODY
    """An operator's word: this broker may lead with whatever it has."""
    unclean_since: int = -1
    """The epoch of the last election by an operator's word; logs that end in earlier ones are copied anew."""
    lost_since: int = -1
    """The epoch in which the only replica last went on without all of its log: who had one before it may have
    what is nowhere else."""

    def has(self, broker: int, storage: int) -> bool:
        return (broker, storage) in self.in_sync

    @property
    def brokers(self) -> tuple[int, ...]:
        """All that have to keep a log: those it should be on, and those it was on whose log still counts."""
        declared = () if self.declared == NOBODY else (self.declared,)
        return tuple(dict.fromkeys((*self.replicas, *(member.broker for member in self.in_sync), *declared)))

    def is_only_on(self, broker: int) -> bool:
        """Whether it should be on that broker only, and nobody else's log counts: nobody has more."""
        return self.replicas == (broker,) and {member.broker for member in self.in_sync} == {broker}


def path_of(key: PartitionKey) -> str:
    return f"{PREFIX}{key[0].hex()}/{key[1]}"


def key_of(path: str) -> PartitionKey:
    topic, _, number = path.removeprefix(PREFIX).partition("/")
    return bytes.fromhex(topic), int(number)


def encode(state: PartitionState) -> Any:
    return {
        "leader": state.leader,
        "epoch": state.epoch,
        "replicas": list(state.replicas),
        "in_sync": [list(member) for member in state.in_sync],
        "reason": state.reason,
        "declared": state.declared,
        "unclean_since": state.unclean_since,
        "lost_since": state.lost_since,
    }


def decode(entry: Versioned) -> PartitionState:
    value = entry.value
    return PartitionState(
        value["leader"],
        value["epoch"],
        tuple(value["replicas"]),
        tuple(Member(*pair) for pair in value["in_sync"]),
        entry.revision,
        value.get("reason", ""),
        value.get("declared", NOBODY),
        value.get("unclean_since", -1),
        value.get("lost_since", -1),
    )


# Elections


def next_epoch(state: PartitionState | None, promised: int) -> int:
    """Above everything that etcd or this replica has ever heard of (rule R3)."""
    return max(-1 if state is None else state.epoch, promised) + 1


def stand(
    state: PartitionState | None,
    replicas: tuple[int, ...],
    me: Member,
    promised: int,
    reason: str,
    *,
    without: int = NOBODY,
) -> PartitionState | None:
    """The state in which `me` leads, to be swapped in; None if it must not stand.

    `without` is the leader that is suspected: it leaves the set in the same swap. A member of the set may
    stand though the partition is being moved away from it: those it moves to may have nothing yet.
    """
    epoch = next_epoch(state, promised)
    if state is None:
        if me.broker not in replicas:
            return None
        return PartitionState(me.broker, epoch, replicas, (me,), 0, reason)
    if state.declared == me.broker:
        return replace(
            state,
            leader=me.broker,
            epoch=epoch,
            in_sync=(me,),
            reason=reason,
            declared=NOBODY,
            unclean_since=epoch,
        )
    if not state.has(*me):
        if not state.is_only_on(me.broker):
            return None
        # The only replica there is may go on from what it has left; nobody else has more (rule R9).
        return replace(state, leader=me.broker, epoch=epoch, in_sync=(me,), reason=reason, lost_since=epoch)
    in_sync = tuple(member for member in state.in_sync if member.broker != without)
    return replace(state, leader=me.broker, epoch=epoch, in_sync=in_sync, reason=reason)


def resign(state: PartitionState, me: Member, *, damaged: bool = False) -> PartitionState | None:
    """Without its storage a leader has nothing to lead with: leave it to the others, if there are any."""
    others = tuple(member for member in state.in_sync if member.broker != me.broker)
    if state.leader != me.broker or (state.has(*me) and not damaged) or not others:
        return None
    what = "can't read its log" if damaged else "lost its log"
    return replace(
        state, leader=NOBODY, epoch=state.epoch + 1, in_sync=others, reason=f"broker {me.broker} {what}"
    )


def declare(state: PartitionState, broker: int) -> PartitionState:
    """An operator gives up whatever `broker` doesn't have: nobody leads until it stands."""
    return replace(
        state,
        leader=NOBODY,
        epoch=state.epoch + 1,
        in_sync=(),
        declared=broker,
        reason=f"an operator gave up what broker {broker} doesn't have",
    )


def appoint(state: PartitionState, broker: int, promised: int, reason: str) -> PartitionState | None:
    """The state in which the member on `broker` leads next."""
    if not any(member.broker == broker for member in state.in_sync):
        return None
    return replace(state, leader=broker, epoch=max(state.epoch, promised) + 1, reason=reason)


def with_members(state: PartitionState, members: Iterable[Member], reason: str) -> PartitionState:
    kept = set(members)
    ordered = [member for member in state.in_sync if member in kept]
    ordered += sorted(kept - set(ordered))
    return replace(state, in_sync=tuple(ordered), reason=reason)


def can_spare(state: PartitionState, broker: int, promised: int, registered: Mapping[int, int]) -> bool:
    """Whether nobody can need the log that `broker` still has, since it was down when this was moved away.

    The key alone doesn't tell: those it lists may have come back without their logs, and not said so yet. So
    they have to have been there (`registered`, by revision) before its last change. And where somebody went
    on without all of the log, only a replica that has answered to him, or to a later one, has nothing more.
    """
    return (
        broker not in state.brokers
        and state.leader != broker
        and max(state.unclean_since, state.lost_since) <= promised <= state.epoch
        and {member.broker for member in state.in_sync}.issuperset(state.replicas)
        and all(
            registered.get(each, state.revision) < state.revision for each in (state.leader, *state.replicas)
        )
    )
