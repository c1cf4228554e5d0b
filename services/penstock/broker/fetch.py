"""Fetch: committed batches from the log to the socket, or a wait until there are some.

Hot segments are answered with views of their own memory, held until the socket has taken them. Cold
ones are read on a disk thread. Sizes are limited as Kafka limits them: per partition, per response, and
always at least one batch, so that a consumer with small limits gets on.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from penstock.broker.catalog import Catalog
from penstock.broker.reply import Answer, Later, Reply
from penstock.broker.stats import RequestStats
from penstock.log.partition import PartitionLog, Slice
from penstock.shm.memory import SegmentMemory
from penstock.wire import batch, fetch
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.fetch import FetchedPartition, FetchedTopic
from penstock.wire.head import RequestHead

_API: Final = 1
MAX_WAIT_MS: Final = 300_000


class _Wanted(NamedTuple):
    log: PartitionLog | None
    error: ErrorCode
    partition: int
    offset: int
    limit: int


class _Plan(NamedTuple):
    head: RequestHead
    min_bytes: int
    max_bytes: int
    topics: list[tuple[str, bytes, list[_Wanted]]]


class _Cold(NamedTuple):
    """A part to be read from disk, for the place in the response that it belongs to."""

    log: PartitionLog
    term: int
    topic_at: int
    partition_at: int
    part: Slice
    limit: int


class _Batch(NamedTuple):
    """What one look at the logs gave."""

    topics: list[FetchedTopic]
    holds: list[SegmentMemory]
    sent: list[tuple[PartitionLog, int, int]]
    cold: list[_Cold]
    size: int
    failed: bool


class FetchHandler:
    def __init__(
        self, catalog: Catalog, stats: RequestStats, max_response: int, disk_threads: int = 2
    ) -> None:
        self._catalog = catalog
        self._stats = stats
        self._max_response = max_response
        self._disk = ThreadPoolExecutor(disk_threads, thread_name_prefix="disk-read")
        self.waiting = 0

    def close(self) -> None:
        self._disk.shutdown(wait=False)

    def handle(self, head: RequestHead, request: Any) -> Answer:
        session_id = getattr(request, "session_id", 0)
        if session_id:
            # No incremental sessions here: every full fetch is answered with session 0.
            return Reply(fetch.write_fetch(head, [], ErrorCode.fetch_session_id_not_found.value))
        plan = self._plan(head, request)
        wait_ms = min(int(request.max_wait.total_seconds() * 1000), MAX_WAIT_MS)
        found = self._look(plan)
        if found.cold:
            return Later(self._read_cold(plan, found))
        if found.size >= plan.min_bytes or found.failed or wait_ms <= 0:
            return _reply(head, found)
        _release(found)
        return Later(self._poll(plan, wait_ms / 1000))

    def _plan(self, head: RequestHead, request: Any) -> _Plan:
        topics = []
        for wanted in request.topics:
            if head.api_version >= fetch.TOPIC_IDS:
                topic_id = wanted.topic_id.bytes if wanted.topic_id is not None else bytes(16)
                served = self._catalog.by_id.get(topic_id)
                name = served.topic.name if served else None
            else:
                name, topic_id = str(wanted.topic), b""
            partitions = [self._resolve(name, partition) for partition in wanted.partitions]
            topics.append((name or "", topic_id, partitions))
        return _Plan(head, request.min_bytes, min(max(request.max_bytes, 0), self._max_response), topics)

    def _resolve(self, name: str | None, wanted: Any) -> _Wanted:
        index, offset, limit = wanted.partition, wanted.fetch_offset, wanted.partition_max_bytes
        try:
            if name is None:
                raise KafkaError(ErrorCode.unknown_topic_id)
            log = self._catalog.find(name, index)
            check_epoch(log, getattr(wanted, "current_leader_epoch", -1))
            return _Wanted(log, ErrorCode.none, index, offset, limit)
        except KafkaError as error:
            return _Wanted(None, error.code, index, offset, limit)

    def _look(self, plan: _Plan) -> _Batch:
        left = plan.max_bytes
        topics: list[FetchedTopic] = []
        found = _Batch(topics, [], [], [], 0, False)
        size, failed = 0, False
        for name, topic_id, partitions in plan.topics:
            fetched: list[FetchedPartition] = []
            topics.append(FetchedTopic(name, topic_id, fetched))
            for wanted in partitions:
                log = wanted.log
                error = wanted.error
                records: memoryview | bytes = b""
                if log is not None and not log.leading:
                    error = ErrorCode.not_leader_or_follower  # it was lost while this request waited
                if log is not None and error is ErrorCode.none:
                    try:
                        limit = min(wanted.limit, left)
                        # One batch at least, but only the first partition may break the limits.
                        part = log.read(wanted.offset, max(limit, 1)) if limit > 0 or size == 0 else None
                        if part is None:
                            pass
                        elif part.view is None:
                            found.cold.append(
                                _Cold(log, log.term, len(topics) - 1, len(fetched), part, max(limit, 1))
                            )
                            left -= limit
                        elif len(part.view) <= limit or size == 0:
                            memory = part.segment.memory
                            assert memory is not None
                            memory.holds += 1
                            found.holds.append(memory)
                            records = part.view
                            size += len(records)
                            left -= len(records)
                            found.sent.append((log, len(records), part.next_offset - wanted.offset))
                    except KafkaError as problem:
                        error = problem.code
                if error is not ErrorCode.none:
                    failed = True
                    self._stats.error(_API, error.name)
                if log is None:
                    fetched.append(FetchedPartition(wanted.partition, error.value, -1, -1, b""))
                else:
                    fetched.append(
                        FetchedPartition(
                            wanted.partition, error.value, log.high_watermark, log.log_start, records
                        )
                    )
        return found._replace(size=size, failed=failed)

    async def _poll(self, plan: _Plan, wait: float) -> Reply:
        """Look again after every commit to one of the logs, until there is enough or time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        bell = _Bell([w.log for _, _, wants in plan.topics for w in wants if w.log is not None])
        self.waiting += 1
        try:
            while True:
                bell.arm()  # before the look: a commit in between must ring
                found = self._look(plan)
                if found.cold:
                    return await self._read_cold(plan, found)
                left = deadline - loop.time()
                if found.size >= plan.min_bytes or found.failed or left <= 0:
                    return _reply(plan.head, found)
                _release(found)
                await bell.wait(left)
        finally:
            self.waiting -= 1
            bell.disarm()

    async def _read_cold(self, plan: _Plan, found: _Batch) -> Reply:
        loop = asyncio.get_running_loop()
        try:
            for log, term, topic_at, partition_at, part, limit in found.cold:
                fetched = found.topics[topic_at].partitions
                entry = fetched[partition_at]
                segment, records, error = part.segment, b"", ErrorCode.none
                try:
                    records = await loop.run_in_executor(
                        self._disk, segment.read_cold, part.offset, limit, segment.committed
                    )
                except FileNotFoundError:
                    gone = part.offset < log.log_start  # retention was faster
                    error = ErrorCode.offset_out_of_range if gone else ErrorCode.kafka_storage_error
                except OSError:
                    error = ErrorCode.kafka_storage_error
                if not log.leading or log.term != term:  # whatever was read: the log may be another by now
                    records, error = b"", ErrorCode.not_leader_or_follower
                fetched[partition_at] = entry._replace(
                    error=error.value, log_start=log.log_start, records=records
                )
                count = sum(header.record_count for _, header in batch.walk(records, 0, len(records)))
                found.sent.append((log, len(records), count))
        except BaseException:
            _release(found)
            raise
        return _reply(plan.head, found)


def check_epoch(log: PartitionLog, epoch: int) -> None:
    """A client that knows an older or a newer leader must look again (rule R12)."""
    if epoch >= 0 and epoch != log.leader_epoch:
        if epoch < log.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch, f"leader epoch is {log.leader_epoch}")
        raise KafkaError(ErrorCode.unknown_leader_epoch, f"leader epoch is {log.leader_epoch}")


def _reply(head: RequestHead, found: _Batch) -> Reply:
    for log, size, count in found.sent:
        log.bytes_out += size
        log.records_out += count
    return Reply(fetch.write_fetch(head, found.topics), found.holds)


def _release(found: _Batch) -> None:
    for memory in found.holds:
        memory.holds -= 1
    found.holds.clear()


class _Bell:
    """Rings at the next commit to any of some logs."""

    def __init__(self, logs: list[PartitionLog]) -> None:
        self._logs = logs
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[None] | None = None

    def arm(self) -> None:
        self.disarm()
        self._rung = self._loop.create_future()
        for log in self._logs:
            log.wait(self._ring)

    async def wait(self, timeout: float) -> None:
        assert self._rung is not None
        timer = self._loop.call_later(timeout, self._ring)
        try:
            await self._rung
        finally:
            timer.cancel()

    def disarm(self) -> None:
        if self._rung is not None:
            self._rung = None
            for log in self._logs:
                log.stop_waiting(self._ring)

    def _ring(self) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)
