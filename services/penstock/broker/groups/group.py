"""One group: who is in it, at which generation, with which protocol and offsets.

Only the rules that need no waiting: `membership.py` runs the rebalances over this, `commits.py` the
offsets. A member that waits for an answer is told through its future.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.broker.groups.model import (
    Alarm,
    CommittedOffset,
    GroupView,
    MemberView,
    Response,
    State,
    TopicPartition,
)
from penstock.broker.groups.schema import StoredGroup, StoredMember, subscribed_topics
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.records import CorruptRecords

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in the member's order of preference."""

CONSUMER = "consumer"


@dataclass(slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """Waits for its first generation, during which it sends no heartbeat."""
    join_version: int = 0
    joining: asyncio.Future[Response] | None = None
    syncing: asyncio.Future[Response] | None = None
    session: Alarm = field(default_factory=Alarm)

    def metadata(self, protocol: str | None) -> bytes:
        return dict(self.protocols).get(protocol or "", b"")


@dataclass(slots=True)
class Group:
    group_id: str
    state: State = State.EMPTY
    state_timestamp: int | None = None
    """When it last became Empty or Stable; None for one that never had members."""
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    """Group instance id -> member id."""
    pending: dict[str, Alarm] = field(default_factory=dict)
    """Ids that were handed out (MEMBER_ID_REQUIRED) and have not joined yet."""

    join_phase: Alarm = field(default_factory=Alarm)
    sync_phase: Alarm = field(default_factory=Alarm)
    unsynced: set[str] = field(default_factory=set)
    """Members of this generation that have not asked for their assignment."""
    first_join: bool = False
    """Started from Empty: the join phase lasts its delay even when everyone known is there."""
    newcomers: bool = False
    """Someone joined during the delay of the first join, which is then extended."""
    assigned_generation: int = -1
    """Whose assignment was given to the journal last."""

    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    in_flight: Counter[TopicPartition] = field(default_factory=Counter)
    """Offsets on their way into the log: not visible yet, but a delete must cover them."""

    # -- members ----------------------------------------------------------------------------------------

    def checked_member(self, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                raise KafkaError(ErrorCode.unknown_member_id)
            if current != member_id:
                raise KafkaError(ErrorCode.fenced_instance_id)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        return member

    def has_room_for(self, member_id: str, max_size: int) -> bool:
        if self.state in (State.COMPLETING, State.STABLE):
            return member_id in self.members or len(self.members) < max_size
        if self.state is State.PREPARING:
            # Counted by who is back: in a group that became too large the first to return stay.
            member = self.members.get(member_id)
            back = sum(other.joining is not None for other in self.members.values())
            return (member is not None and member.joining is not None) or back < max_size
        return True

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self.unsynced.discard(member.member_id)

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back: same place in the group, new id."""
        assert member.instance_id is not None
        old = member.member_id
        self.members = {member_id if key == old else key: value for key, value in self.members.items()}
        member.member_id = member_id
        self.static[member.instance_id] = member_id
        if self.leader == old:
            self.leader = member_id
        if old in self.unsynced:
            self.unsynced.remove(old)
            self.unsynced.add(member_id)

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it joined, else take the first member that did; False if none did."""
        joined = [key for key, member in self.members.items() if member.joining is not None]
        if joined and self.leader not in joined:
            self.leader = joined[0]
        return bool(joined)

    @property
    def everyone_joined(self) -> bool:
        return not self.pending and all(member.joining is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- protocol ---------------------------------------------------------------------------------------

    def _common_protocols(self) -> set[str]:
        names = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*names) if names else set()

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        if not self.members:
            return bool(protocol_type and protocols)
        common = self._common_protocols()
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def vote(self) -> str:
        """The protocol most members prefer among those that all of them know."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def begin_generation(self, now: int) -> None:
        self.generation += 1
        if self.members:
            self.protocol = self.vote()
            self.state = State.COMPLETING
        else:
            self.protocol = None
            self.leader = None
            self.state = State.EMPTY
            self.state_timestamp = now

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member consumes the topic; yes, to be safe, if its subscription can't be read."""
        try:
            return any(topic in subscribed_topics(m.metadata(self.protocol)) for m in self.members.values())
        except CorruptRecords:
            return True

    # -- pictures ---------------------------------------------------------------------------------------

    def stored(self, now: int, assignments: Mapping[str, bytes] | None = None) -> StoredGroup:
        """What goes into the log, with these assignments or the present ones."""
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            state_timestamp=now,
            members=tuple(
                StoredMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    host=member.host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol),
                    assignment=member.assignment if assignments is None else assignments.get(key, b""),
                )
                for key, member in self.members.items()
            ),
        )

    def view(self) -> GroupView:
        return GroupView(
            group_id=self.group_id,
            state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol=self.protocol or "",
            generation=self.generation,
            members=tuple(
                MemberView(m.member_id, m.instance_id, m.client_id, m.host, m.assignment)
                for m in self.members.values()
            ),
            offsets=dict(self.offsets),
        )


def restore(
    group_id: str, stored: StoredGroup | None, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Group:
    """A group as the log has it: Stable with its members and their assignments, or Empty."""
    group = Group(group_id, offsets=dict(offsets))
    if stored is None:
        return group
    group.protocol_type = stored.protocol_type or None
    group.protocol = stored.protocol
    group.generation = stored.generation
    group.leader = stored.leader
    group.state_timestamp = stored.state_timestamp
    for member in _members(stored.members, stored.protocol):
        group.members[member.member_id] = member
        if member.instance_id is not None:
            group.static[member.instance_id] = member.member_id
    group.state = State.STABLE if group.members else State.EMPTY
    return group


def _members(stored: Iterable[StoredMember], protocol: str | None) -> Iterable[Member]:
    for member in stored:
        yield Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.host,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
            protocols=((protocol or "", member.subscription),),
            assignment=member.assignment,
        )
