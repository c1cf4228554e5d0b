"""The group coordinator: one method per Kafka API, called by the broker's dispatch.

Every method takes the request as kio read it, its version and who sent it, and gives the response's
fields. Groups belong to partitions of `__consumer_offsets`: the broker calls `load` when it comes to lead
one and `unload` when it no longer does; in between, those groups are served here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

from penstock.broker.groups.commits import Commits
from penstock.broker.groups.group import Group
from penstock.broker.groups.journal import Journal, OffsetsLog
from penstock.broker.groups.membership import Membership
from penstock.broker.groups.model import (
    ClientInfo,
    GroupSettings,
    GroupView,
    LoopTimers,
    Response,
    State,
    Timers,
    Topics,
)
from penstock.broker.groups.rebalance import Rebalance
from penstock.broker.groups.registry import Registry
from penstock.wire.errors import ErrorCode, KafkaError

_CLASSIC = "classic"
_NOT_FOUND_IS_AN_ERROR = 6
"""DescribeGroups version from which a group that isn't there is an error, not a dead group."""


class GroupCoordinator:
    def __init__(
        self,
        offsets_log: OffsetsLog,
        topics: Topics,
        settings: GroupSettings | None = None,
        timers: Timers | None = None,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        settings = settings or GroupSettings()
        timers = timers or LoopTimers()
        journal = Journal(offsets_log, timers)
        self._registry = Registry(offsets_log)
        self._rebalance = Rebalance(journal, settings, timers)
        self._membership = Membership(self._registry, self._rebalance, journal, settings, new_id)
        self._commits = Commits(self._registry, self._membership, journal, topics, settings, timers)

    # -- partitions of __consumer_offsets ---------------------------------------------------------------

    async def load(self, partition: int) -> None:
        """Read the partition, then serve its groups; until then they are told to wait."""
        for group in await self._registry.load(partition):
            self._rebalance.adopt(group)

    def unload(self, partition: int) -> None:
        for group in self._registry.unload(partition):
            self._rebalance.abandon(group)

    # -- membership -------------------------------------------------------------------------------------

    async def join_group(self, request: Any, version: int, client: ClientInfo) -> Response:
        return await self._membership.join(request, version, client)

    async def sync_group(self, request: Any, version: int, client: ClientInfo) -> Response:
        return await self._membership.sync(request)

    def heartbeat(self, request: Any, version: int, client: ClientInfo) -> Response:
        return self._membership.heartbeat(request)

    def leave_group(self, request: Any, version: int, client: ClientInfo) -> Response:
        return self._membership.leave(request, version)

    # -- offsets ----------------------------------------------------------------------------------------

    async def offset_commit(self, request: Any, version: int, client: ClientInfo) -> Response:
        return await self._commits.commit(request, version)

    def offset_fetch(self, request: Any, version: int, client: ClientInfo) -> Response:
        return self._commits.fetch(request, version)

    async def offset_delete(self, request: Any, version: int, client: ClientInfo) -> Response:
        return await self._commits.delete(request)

    async def forget_topic(self, name: str) -> None:
        """The topic was deleted, and `Topics` no longer has it: nobody can go on from its offsets."""
        await self._commits.forget_topic(name)

    async def expire(self, now_ms: int) -> int:
        """Called now and then: drops what is past its retention, returns how many offsets went."""
        return await self._commits.expire(now_ms)

    # -- groups as a whole ------------------------------------------------------------------------------

    def groups(self) -> Iterator[GroupView]:
        return (group.view() for group in self._registry)

    def describe_groups(self, request: Any, version: int, client: ClientInfo) -> Response:
        return {"groups": [self._describe(group_id, version) for group_id in request.groups]}

    def _describe(self, group_id: str, version: int) -> Response:
        try:
            group = self._registry.find(group_id)
        except KafkaError as error:
            return _undescribed(group_id, "", error.code)
        if group is not None:
            return _described(group)
        answer = _undescribed(group_id, State.DEAD.value, ErrorCode.none)
        if version >= _NOT_FOUND_IS_AN_ERROR:
            answer |= {
                "error_code": ErrorCode.group_id_not_found,
                "error_message": f"Group {group_id} not found.",
            }
        return answer

    def list_groups(self, request: Any, version: int, client: ClientInfo) -> Response:
        states = {state.lower() for state in getattr(request, "states_filter", ())}
        types = {kind.lower() for kind in getattr(request, "types_filter", ())}
        loading = self._registry.is_loading
        return {
            # An incomplete list says so: the client asks again.
            "error_code": ErrorCode.coordinator_load_in_progress if loading else ErrorCode.none,
            "groups": [
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type or "",
                    "group_state": group.state.value,
                    "group_type": _CLASSIC,
                }
                for group in self._registry
                if (not states or group.state.value.lower() in states) and (not types or _CLASSIC in types)
            ],
        }

    async def delete_groups(self, request: Any, version: int, client: ClientInfo) -> Response:
        return {
            "results": [
                {"group_id": group_id, "error_code": await self._delete(group_id)}
                for group_id in request.groups_names
            ]
        }

    async def _delete(self, group_id: str) -> ErrorCode:
        try:
            group = self._registry.find(group_id)
        except KafkaError as error:
            return error.code
        if group is None:
            return ErrorCode.group_id_not_found
        if group.state is not State.EMPTY:
            return ErrorCode.non_empty_group
        return await self._commits.delete_group(group)


def _undescribed(group_id: str, state: str, code: ErrorCode) -> Response:
    return {
        "error_code": code,
        "error_message": None,
        "group_id": group_id,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }


def _described(group: Group) -> Response:
    # Between generations a member's metadata and assignment mean nothing yet.
    stable = group.state is State.STABLE
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.host,
                "member_metadata": member.metadata(group.protocol) if stable else b"",
                "member_assignment": member.assignment if stable else b"",
            }
            for member in group.members.values()
        ],
    }
