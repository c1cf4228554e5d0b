"""The requests of a group's members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Checks who asks and in which state the group is, as Kafka's coordinator does; `rebalance.py` moves it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.broker.groups.answers import (
    Outcome,
    answer_sync,
    give,
    joined,
    later,
    not_synced,
    refuse_join,
    refused,
    settled,
    synced,
)
from penstock.broker.groups.group import Group, Member, Protocols
from penstock.broker.groups.journal import Journal
from penstock.broker.groups.model import ClientInfo, GroupSettings, Response, State
from penstock.broker.groups.rebalance import Rebalance
from penstock.broker.groups.registry import MAX_ID_LENGTH, Registry
from penstock.wire.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

_MEMBER_ID_REQUIRED = 4
"""JoinGroup version from which a new member must come back with the id it was given."""
_SKIP_ASSIGNMENT = 9
"""JoinGroup version from which a leader can be told that there is nothing to assign."""
_MANY_LEAVE = 3
"""LeaveGroup version from which one request removes several members."""
_LONGEST_CLIENT_ID = 255
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A JoinGroup request, whatever its version."""

    version: int
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols

    @classmethod
    def of(cls, request: Any, version: int, client: ClientInfo) -> _Attempt:
        session: timedelta = request.session_timeout
        rebalance: timedelta = getattr(request, "rebalance_timeout", session)
        return cls(
            version=version,
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            client_id=client.client_id[:_LONGEST_CLIENT_ID],
            host=client.host,
            session_timeout_ms=session // _MILLISECOND,
            rebalance_timeout_ms=rebalance // _MILLISECOND,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        )

    def check(self, settings: GroupSettings) -> None:
        if not self.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        if not settings.min_session_timeout_ms <= self.session_timeout_ms <= settings.max_session_timeout_ms:
            raise KafkaError(ErrorCode.invalid_session_timeout)
        if not (self.protocol_type and self.protocols):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        names = [self.instance_id or "", self.protocol_type, *(name for name, _ in self.protocols)]
        if any(len(name) > MAX_ID_LENGTH for name in names):
            raise KafkaError(ErrorCode.invalid_request, "group instance id or protocol name too long")

    def member(self, member_id: str) -> Member:
        return Member(
            member_id=member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            host=self.host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            protocols=self.protocols,
            is_new=True,
            join_version=self.version,
        )

    def update(self, member: Member) -> None:
        member.client_id = self.client_id
        member.host = self.host
        member.rebalance_timeout_ms = self.rebalance_timeout_ms
        member.session_timeout_ms = self.session_timeout_ms
        member.protocols = self.protocols
        member.join_version = self.version


class Membership:
    def __init__(
        self,
        registry: Registry,
        rebalance: Rebalance,
        journal: Journal,
        settings: GroupSettings,
        new_id: Callable[[], str],
    ) -> None:
        self._registry = registry
        self._rebalance = rebalance
        self._journal = journal
        self._settings = settings
        self._new_id = new_id

    # -- join -------------------------------------------------------------------------------------------

    async def join(self, request: Any, version: int, client: ClientInfo) -> Response:
        attempt = _Attempt.of(request, version, client)
        try:
            return await settled(self._join(attempt))
        except KafkaError as error:
            return refused(version, error.code, attempt.member_id)

    def _join(self, attempt: _Attempt) -> Outcome:
        attempt.check(self._settings)
        group = self._registry.find(attempt.group_id)
        if group is None:
            if attempt.member_id:
                raise KafkaError(ErrorCode.unknown_member_id)
            group = self._registry.find_or_create(attempt.group_id)
        if not group.has_room_for(attempt.member_id, self._settings.max_size):
            self._drop_for_size(group, attempt.member_id)
            raise KafkaError(ErrorCode.group_max_size_reached)
        if not group.supports(attempt.protocol_type, attempt.protocols):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if attempt.member_id:
            return self._rejoin(group, attempt)
        if attempt.instance_id is not None:
            member_id = f"{attempt.instance_id}-{self._new_id()}"
            known = group.static.get(attempt.instance_id)
            if known is not None:
                return self._replace_static(group, group.members[known], member_id, attempt)
            return self._admit(group, member_id, attempt)
        member_id = f"{attempt.client_id}-{self._new_id()}"
        if attempt.version < _MEMBER_ID_REQUIRED:
            return self._admit(group, member_id, attempt)
        # The id is only a promise until the client comes back with it, so that a client which repeats
        # its first join after a lost answer leaves no ghost member behind.
        self._rebalance.expect(group, member_id, attempt.session_timeout_ms)
        return refused(attempt.version, ErrorCode.member_id_required, member_id)

    def _drop_for_size(self, group: Group, member_id: str) -> None:
        if member_id in group.pending:
            self._rebalance.stop_expecting(group, member_id)
        elif (member := group.members.get(member_id)) is not None:
            self._rebalance.remove(group, member, "group is full")

    def _admit(self, group: Group, member_id: str, attempt: _Attempt) -> Outcome:
        member = attempt.member(member_id)
        if group.state is State.PREPARING and group.generation == 0:
            group.newcomers = True
        group.add(member, attempt.protocol_type)
        self._rebalance.keep_alive(group, member)
        log.info("group %s: member %s joins from %s", group.group_id, member_id, attempt.host)
        return self._rebalance.wait_for_generation(group, member)

    def _rejoin(self, group: Group, attempt: _Attempt) -> Outcome:
        if attempt.member_id in group.pending and attempt.instance_id is None:
            group.pending.pop(attempt.member_id).cancel()
            return self._admit(group, attempt.member_id, attempt)
        member = group.checked_member(attempt.member_id, attempt.instance_id)
        if member.protocols == attempt.protocols:
            if group.state is State.COMPLETING:
                # It did not get the answer of this generation; the leader may be at work on it already.
                return joined(group, member)
            if group.state is State.STABLE and member.member_id != group.leader:
                self._rebalance.keep_alive(group, member)
                return joined(group, member)
        # Also when nothing changed but the leader rejoins: it saw its topics change. An earlier request of
        # the same member must still be answered, since answers go out in order.
        refuse_join(member, ErrorCode.rebalance_in_progress)
        attempt.update(member)
        return self._rebalance.wait_for_generation(group, member)

    def _replace_static(self, group: Group, member: Member, member_id: str, attempt: _Attempt) -> Outcome:
        """A static member restarted: it takes its own place, without a rebalance where that is possible."""
        old_id, old_leader = member.member_id, group.leader
        refuse_join(member, ErrorCode.fenced_instance_id)
        answer_sync(member, not_synced(ErrorCode.fenced_instance_id))
        group.rename(member, member_id)
        attempt.update(member)
        self._rebalance.keep_alive(group, member)
        log.info("group %s: static member %s is back as %s", group.group_id, old_id, member_id)
        if group.state is not State.STABLE or group.vote() != group.protocol:
            return self._rebalance.wait_for_generation(group, member)
        generation, answer = group.generation, later()

        def settle(code: ErrorCode) -> None:
            if group.members.get(member_id) is not member:
                code = ErrorCode.fenced_instance_id  # by a third start of the same instance
            elif code is not ErrorCode.none:
                group.rename(member, old_id)
            elif group.state is not State.STABLE or group.generation != generation:
                code = ErrorCode.rebalance_in_progress
            if code is not ErrorCode.none:
                give(answer, refused(attempt.version, code, member_id))
                return
            skips = attempt.version >= _SKIP_ASSIGNMENT and group.leader == member_id
            # Told its old id as the leader's, an older client that led the group doesn't now: the
            # assignment stands.
            leader = group.leader if skips else old_leader
            give(answer, joined(group, member, leader=leader, skip=skips))

        self._journal.write(group.group_id, [self._rebalance.snapshot(group)], settle)
        return answer

    # -- sync -------------------------------------------------------------------------------------------

    async def sync(self, request: Any) -> Response:
        try:
            return await settled(self._sync(request))
        except KafkaError as error:
            return not_synced(error.code)

    def _sync(self, request: Any) -> Outcome:
        group, member = self._member_of_generation(request)
        if getattr(request, "protocol_type", None) not in (None, group.protocol_type):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if getattr(request, "protocol_name", None) not in (None, group.protocol):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if group.state is State.PREPARING:
            raise KafkaError(ErrorCode.rebalance_in_progress)
        self._rebalance.has_synced(group, member)
        if group.state is State.STABLE:
            self._rebalance.keep_alive(group, member)
            return synced(group, member)
        waiting = self._rebalance.wait_for_assignment(group, member)
        if member.member_id == group.leader:
            self._rebalance.assign(group, {part.member_id: part.assignment for part in request.assignments})
        return waiting

    # -- heartbeat, commit, leave -----------------------------------------------------------------------

    def heartbeat(self, request: Any) -> Response:
        try:
            group, member = self._member_of_generation(request)
        except KafkaError as error:
            if error.code is ErrorCode.coordinator_load_in_progress:
                # Its session starts anew when loading is done: nothing that a member has to know.
                return {"error_code": ErrorCode.none}
            return {"error_code": error.code}
        self._rebalance.keep_alive(group, member)
        rebalancing = group.state is State.PREPARING
        return {"error_code": ErrorCode.rebalance_in_progress if rebalancing else ErrorCode.none}

    def _member_of_generation(self, request: Any) -> tuple[Group, Member]:
        if not request.group_id:
            raise KafkaError(ErrorCode.invalid_group_id)
        group = self._registry.find(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        member = group.checked_member(request.member_id, getattr(request, "group_instance_id", None))
        if request.generation_id != group.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        return group, member

    def check_commit(self, group: Group, request: Any) -> None:
        """Whether this member may commit offsets now; trying shows that it is alive."""
        member = group.checked_member(request.member_id, getattr(request, "group_instance_id", None))
        if request.generation_id_or_member_epoch != group.generation:
            raise KafkaError(ErrorCode.illegal_generation)
        if group.state is State.COMPLETING:
            # Its partitions may be another's already; it learns which when it syncs.
            raise KafkaError(ErrorCode.rebalance_in_progress)
        self._rebalance.keep_alive(group, member)

    def leave(self, request: Any, version: int) -> Response:
        try:
            if not request.group_id:
                raise KafkaError(ErrorCode.invalid_group_id)
            group = self._registry.find(request.group_id)
        except KafkaError as error:
            return {"error_code": error.code, "members": []}
        if version < _MANY_LEAVE:
            return {"error_code": self._leave(group, request.member_id, None)}
        return {
            "error_code": ErrorCode.none,
            "members": [
                {
                    "member_id": leaver.member_id,
                    "group_instance_id": leaver.group_instance_id,
                    "error_code": self._leave(group, leaver.member_id, leaver.group_instance_id),
                }
                for leaver in request.members
            ],
        }

    def _leave(self, group: Group | None, member_id: str, instance_id: str | None) -> ErrorCode:
        if group is None:
            return ErrorCode.unknown_member_id
        if member_id in group.pending and instance_id is None:
            self._rebalance.stop_expecting(group, member_id)
            return ErrorCode.none
        if instance_id is not None and not member_id:
            # An operator removes a static member by the one name that is known outside.
            member_id = group.static.get(instance_id, "")
        try:
            member = group.checked_member(member_id, instance_id)
        except KafkaError as error:
            return error.code
        self._rebalance.remove(group, member, "left")
        return ErrorCode.none
