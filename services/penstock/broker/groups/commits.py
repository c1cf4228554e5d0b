"""Committed offsets: commit, fetch, delete, expiry. Visible once the log has them, and not before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from penstock.broker.groups.group import CONSUMER, Group
from penstock.broker.groups.journal import Entry, Journal
from penstock.broker.groups.membership import Membership
from penstock.broker.groups.model import (
    NO_OFFSET,
    CommittedOffset,
    GroupSettings,
    Response,
    State,
    Timers,
    TopicPartition,
    Topics,
)
from penstock.broker.groups.registry import Registry
from penstock.broker.groups.schema import GroupKey, OffsetKey, encode_offset
from penstock.wire.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

_TOPIC_IDS = 10
"""OffsetCommit and OffsetFetch version from which topics go by id."""
_MANY_GROUPS = 8
"""OffsetFetch version from which one request asks for several groups."""
_MILLISECOND = timedelta(milliseconds=1)


class Commits:
    def __init__(
        self,
        registry: Registry,
        membership: Membership,
        journal: Journal,
        topics: Topics,
        settings: GroupSettings,
        timers: Timers,
    ) -> None:
        self._registry = registry
        self._membership = membership
        self._journal = journal
        self._topics = topics
        self._settings = settings
        self._timers = timers

    # -- commit -----------------------------------------------------------------------------------------

    async def commit(self, request: Any, version: int) -> Response:
        answers: list[Response] = []
        wanted: dict[TopicPartition, CommittedOffset] = {}
        waiting: list[tuple[TopicPartition, Response]] = []
        refusal = self._refusal(request)
        expire_timestamp = self._expiry(request)
        now = self._timers.now_ms()
        for topic in request.topics:
            name, label, unknown = self._resolve(topic, version)
            partitions = []
            for asked in topic.partitions:
                answer: Response = {"partition_index": asked.partition_index, "error_code": refusal}
                partitions.append(answer)
                if refusal is not ErrorCode.none:
                    continue
                metadata: str = asked.committed_metadata or ""
                if name is None or not self._topics.has_partition(name, asked.partition_index):
                    answer["error_code"] = unknown
                elif len(metadata.encode()) > self._settings.max_offset_metadata_bytes:
                    answer["error_code"] = ErrorCode.offset_metadata_too_large
                else:
                    key = (name, asked.partition_index)
                    epoch: int = getattr(asked, "committed_leader_epoch", -1)
                    wanted[key] = CommittedOffset(
                        asked.committed_offset, epoch, metadata, now, expire_timestamp
                    )
                    waiting.append((key, answer))
            answers.append({**label, "partitions": partitions})
        if wanted:
            code = await self._store(self._registry.find_or_create(request.group_id), wanted)
            for _, answer in waiting:
                answer["error_code"] = code
        return {"topics": answers}

    def _refusal(self, request: Any) -> ErrorCode:
        """Why the whole commit is refused, if it is."""
        try:
            group = self._registry.find(request.group_id)
            generation: int = request.generation_id_or_member_epoch
            if group is None and generation >= 0:
                return ErrorCode.illegal_generation
            # Without a generation and with nobody in the group: a simple consumer, who only keeps offsets.
            if group is not None and (generation >= 0 or group.state is not State.EMPTY):
                self._membership.check_commit(group, request)
        except KafkaError as error:
            return error.code
        return ErrorCode.none

    def _expiry(self, request: Any) -> int | None:
        retention: timedelta | None = getattr(request, "retention_time", None)
        if retention is None or retention < timedelta(0):
            return None
        return self._timers.now_ms() + retention // _MILLISECOND

    async def _store(self, group: Group, wanted: dict[TopicPartition, CommittedOffset]) -> ErrorCode:
        group.in_flight.update(wanted.keys())

        def settle(code: ErrorCode) -> None:
            group.in_flight.subtract(wanted.keys())
            for key in wanted:
                if not group.in_flight[key]:
                    del group.in_flight[key]
            if code is ErrorCode.none:
                group.offsets.update(wanted)

        entries: list[Entry] = [
            (OffsetKey(group.group_id, key), encode_offset(committed)) for key, committed in wanted.items()
        ]
        return await self._journal.write(group.group_id, entries, settle)

    # -- fetch ------------------------------------------------------------------------------------------

    def fetch(self, request: Any, version: int) -> Response:
        if version >= _MANY_GROUPS:
            return {"groups": [self._fetch_group(asked, version) for asked in request.groups]}
        answer = self._fetch_group(request, version)
        if version < 2 and answer["error_code"] is not ErrorCode.none:
            # v1 has no error of its own: every partition carries it.
            for topic in request.topics:
                failed = [self._offset(None, p, answer["error_code"]) for p in topic.partition_indexes]
                answer["topics"].append({"name": topic.name, "partitions": failed})
        return answer

    def _fetch_group(self, asked: Any, version: int) -> Response:
        answer: Response = {"group_id": asked.group_id, "topics": [], "error_code": ErrorCode.none}
        try:
            group = self._registry.find(asked.group_id)
        except KafkaError as error:
            return {**answer, "error_code": error.code}
        committed = {} if group is None else group.offsets
        if asked.topics is None:
            answer["topics"] = self._all_offsets(committed, version)
            return answer
        for topic in asked.topics:
            name, label, unknown = self._resolve(topic, version)
            code = unknown if name is None else ErrorCode.none
            found = [
                self._offset(committed.get((name or "", index)), index, code)
                for index in topic.partition_indexes
            ]
            answer["topics"].append({**label, "partitions": found})
        return answer

    def _all_offsets(self, offsets: dict[TopicPartition, CommittedOffset], version: int) -> list[Response]:
        by_topic: dict[str, list[Response]] = {}
        for (name, index), committed in sorted(offsets.items()):
            by_topic.setdefault(name, []).append(self._offset(committed, index, ErrorCode.none))
        topics = []
        for name, partitions in by_topic.items():
            topic_id = self._topics.topic_id(name)
            if version < _TOPIC_IDS or topic_id is not None:
                topics.append({"name": name, "topic_id": topic_id, "partitions": partitions})
        return topics

    def _offset(self, committed: CommittedOffset | None, index: int, code: ErrorCode) -> Response:
        return {
            "partition_index": index,
            "committed_offset": NO_OFFSET if committed is None else committed.offset,
            "committed_leader_epoch": -1 if committed is None else committed.leader_epoch,
            "metadata": "" if committed is None else committed.metadata,
            "error_code": code,
        }

    def _resolve(self, topic: Any, version: int) -> tuple[str | None, Response, ErrorCode]:
        """(name if there is one, the field that names it in the answer, the error if there is none)."""
        if version < _TOPIC_IDS:
            return topic.name, {"name": topic.name}, ErrorCode.unknown_topic_or_partition
        topic_id: UUID | None = topic.topic_id
        name = None if topic_id is None else self._topics.topic_name(topic_id)
        missing = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
        return name, {"topic_id": topic_id}, missing

    # -- delete, expire ---------------------------------------------------------------------------------

    async def delete(self, request: Any) -> Response:
        try:
            group = self._registry.find(request.group_id)
            if group is None:
                raise KafkaError(ErrorCode.group_id_not_found)
            if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
                raise KafkaError(ErrorCode.non_empty_group)
        except KafkaError as error:
            return {"error_code": error.code, "topics": []}
        doomed: list[tuple[TopicPartition, Response]] = []
        topics = []
        for topic in request.topics:
            subscribed = group.is_subscribed(topic.name)
            partitions = []
            for asked in topic.partitions:
                answer: Response = {"partition_index": asked.partition_index, "error_code": ErrorCode.none}
                partitions.append(answer)
                if not self._topics.has_partition(topic.name, asked.partition_index):
                    answer["error_code"] = ErrorCode.unknown_topic_or_partition
                elif subscribed:
                    answer["error_code"] = ErrorCode.group_subscribed_to_topic
                else:
                    doomed.append(((topic.name, asked.partition_index), answer))
            topics.append({"name": topic.name, "partitions": partitions})
        code = await self._erase(group, [key for key, _ in doomed])
        for _, answer in doomed:
            answer["error_code"] = code
        return {"error_code": ErrorCode.none, "topics": topics}

    async def _erase(self, group: Group, keys: Iterable[TopicPartition]) -> ErrorCode:
        doomed = [key for key in keys if key in group.offsets or key in group.in_flight]
        if not doomed:
            return ErrorCode.none

        def settle(code: ErrorCode) -> None:
            if code is ErrorCode.none:
                for key in doomed:
                    group.offsets.pop(key, None)

        entries: list[Entry] = [(OffsetKey(group.group_id, key), None) for key in doomed]
        return await self._journal.write(group.group_id, entries, settle)

    async def delete_group(self, group: Group) -> ErrorCode:
        """An Empty group with all it has. Nobody gets in meanwhile: it is Dead until the log has it."""
        group.state = State.DEAD
        offsets = group.offsets.keys() | group.in_flight.keys()

        def settle(code: ErrorCode) -> None:
            if code is ErrorCode.none:
                self._registry.drop(group)
            else:
                group.state = State.EMPTY

        entries: list[Entry] = [(OffsetKey(group.group_id, key), None) for key in sorted(offsets)]
        entries.append((GroupKey(group.group_id), None))
        return await self._journal.write(group.group_id, entries, settle)

    async def forget_topic(self, name: str) -> None:
        of_topic = (
            self._erase(
                group, [key for key in group.offsets.keys() | group.in_flight.keys() if key[0] == name]
            )
            for group in self._registry
        )
        await asyncio.gather(*of_topic)

    async def expire(self, now: int) -> int:
        """Drop offsets past their retention, and groups that have nothing left; how many offsets went."""
        gone = 0
        for group in self._registry:
            expired = [
                key for key, offset in group.offsets.items() if self._is_expired(group, key, offset, now)
            ]
            if await self._erase(group, expired) is ErrorCode.none:
                gone += len(expired)
            idle = group.state is State.EMPTY and not group.pending
            if idle and not group.offsets and not group.in_flight:
                await self.delete_group(group)
        if gone:
            log.info("group offsets: %d expired", gone)
        return gone

    def _is_expired(self, group: Group, key: TopicPartition, committed: CommittedOffset, now: int) -> bool:
        if key in group.in_flight:
            return False
        if group.state is State.EMPTY:
            # Counted from when the last member left: what an idle member committed long ago stays.
            since = max(group.state_timestamp or 0, committed.commit_timestamp)
        elif group.state is State.STABLE and group.protocol_type == CONSUMER:
            if group.is_subscribed(key[0]):
                return False
            since = committed.commit_timestamp
        else:
            return False
        if committed.expire_timestamp is not None:
            return now >= committed.expire_timestamp
        return now - since >= self._settings.offsets_retention_ms
