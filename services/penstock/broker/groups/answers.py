"""Answers to JoinGroup and SyncGroup, given at once or, through a future, when the group moves on."""

from __future__ import annotations

import asyncio

from penstock.broker.groups.group import Group, Member
from penstock.broker.groups.model import Response
from penstock.wire.errors import ErrorCode

Outcome = Response | asyncio.Future[Response]

_NULL_PROTOCOL_NAME = 7
"""JoinGroup version from which a refused member has no protocol name; before, it was an empty one."""


def refused(version: int, code: ErrorCode, member_id: str) -> Response:
    """To JoinGroup."""
    return {
        "error_code": code,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": None if version >= _NULL_PROTOCOL_NAME else "",
        "leader": "",
        "skip_assignment": False,
        "member_id": member_id,
        "members": [],
    }


def joined(group: Group, member: Member, *, leader: str | None = None, skip: bool = False) -> Response:
    """The group's generation as this member sees it; only the leader gets to know the others."""
    leader = leader or group.leader
    return {
        "error_code": ErrorCode.none,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "leader": leader,
        "skip_assignment": skip,
        "member_id": member.member_id,
        "members": [
            {
                "member_id": other.member_id,
                "group_instance_id": other.instance_id,
                "metadata": other.metadata(group.protocol),
            }
            for other in (group.members.values() if leader == member.member_id else ())
        ],
    }


def synced(group: Group, member: Member) -> Response:
    return {
        "error_code": ErrorCode.none,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": member.assignment,
    }


def not_synced(code: ErrorCode) -> Response:
    return {"error_code": code, "protocol_type": None, "protocol_name": None, "assignment": b""}


def later() -> asyncio.Future[Response]:
    return asyncio.get_running_loop().create_future()


async def settled(outcome: Outcome) -> Response:
    return await outcome if isinstance(outcome, asyncio.Future) else outcome


def give(waiting: asyncio.Future[Response], response: Response) -> None:
    # Done already means cancelled: the client hung up while it waited.
    if not waiting.done():
        waiting.set_result(response)


def answer_join(member: Member, response: Response) -> bool:
    """Whether there was a request to answer."""
    waiting, member.joining = member.joining, None
    if waiting is not None:
        give(waiting, response)
    return waiting is not None


def refuse_join(member: Member, code: ErrorCode) -> bool:
    return answer_join(member, refused(member.join_version, code, member.member_id))


def answer_sync(member: Member, response: Response) -> bool:
    waiting, member.syncing = member.syncing, None
    if waiting is not None:
        give(waiting, response)
    return waiting is not None
