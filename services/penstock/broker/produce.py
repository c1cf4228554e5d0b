"""Produce: from the request's bytes into the log, and the wait until they are safe.

The straight path is synchronous: check, append, answer, all in one call from the socket. It leaves it in
two cases. No memory (or no reserved offsets) for an append: the connection is blocked while this
waits, so that order is kept and the client slows down; after a second the client gets an error that it
retries. Records not committed yet (disk, replicas): the answer is a promise that their last commit keeps, the
connection goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from time import monotonic, perf_counter
from typing import Final

from penstock.broker.catalog import Catalog, ServedTopic
from penstock.broker.reply import Answer, Hand, Later, Promise, Reply
from penstock.broker.stats import RequestStats
from penstock.cluster.topics import INTERNAL
from penstock.log.partition import COMMITTED, Awaiting, CeilingReached, PartitionLog
from penstock.log.pool import MemoryExhausted
from penstock.log.store import LogStore
from penstock.wire import batch, produce
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.head import RequestHead
from penstock.wire.produce import PartitionAnswer, ProducedPartition, ProducedTopic, TopicAnswer
from penstock.wire.records import CorruptRecords, decode_records

PATIENCE: Final = 1.0
"""Seconds that an append waits for memory before the client is told to try again."""
SWEEP: Final = 0.05
"""Seconds from one look for requests whose time is up to the next."""
_ALL: Final = -1
_API: Final = 0


_Todo = tuple[ServedTopic | KafkaError, ProducedPartition, list[PartitionAnswer]]


class _Wait(Awaiting):
    """One partition whose records are appended and not committed yet."""

    __slots__ = ("answers", "log", "request", "slot")

    def __init__(self, log: PartitionLog, offset: int, answers: list[PartitionAnswer]) -> None:
        super().__init__(offset, log.term)
        self.log = log
        self.answers = answers
        self.slot = len(answers)
        self.request: _Open | None = None

    def settled(self, code: ErrorCode) -> None:
        request = self.request
        assert request is not None
        self.request = None
        request.settled(self, code)


class _Open(Promise):
    """A request whose records are appended; its answer comes when the last of its partitions is settled."""

    __slots__ = ("_answers", "_handler", "_head", "_left", "deadline", "waits")

    def __init__(
        self,
        handler: ProduceHandler,
        head: RequestHead,
        answers: list[TopicAnswer],
        waits: list[_Wait],
        deadline: float,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._head = head
        self._answers = answers
        self._left = len(waits)
        self.waits = waits
        self.deadline = deadline

    def wait(self) -> None:
        for wait in self.waits:
            wait.request = self
            code = wait.log.fate(wait.offset, wait.term)
            if code is None:
                wait.log.when_settled(wait)
            else:
                wait.settled(code)

    def settled(self, wait: _Wait, code: ErrorCode) -> None:
        if code is not COMMITTED:
            self._handler.not_committed(wait, code)
        self._left -= 1
        if self._left == 0:
            self._handler.closed(self)
            self.keep(Reply((produce.write_produce(self._head, self._answers),)))

    def time_out(self) -> None:
        for wait in self.waits:
            if wait.request is not None:
                wait.log.stop_awaiting(wait)
                code = wait.log.fate(wait.offset, wait.term)
                wait.settled(ErrorCode.request_timed_out if code is None else code)


class ProduceHandler:
    def __init__(self, catalog: Catalog, store: LogStore, stats: RequestStats) -> None:
        self._catalog = catalog
        self._store = store
        self._stats = stats
        self._open: dict[_Open, None] = {}
        self._sweeping = False

    def handle(self, head: RequestHead, frame: memoryview) -> Answer:
        request = produce.read_produce(head, frame)
        refused = self._refuse_all(request)
        answers: list[TopicAnswer] = []
        waits: list[_Wait] = []
        todo: list[_Todo] = []
        for topic in request.topics:
            partitions: list[PartitionAnswer] = []
            answers.append(TopicAnswer(topic.name, topic.topic_id, partitions))
            served = self._serve(topic)
            for produced in topic.partitions:
                if todo:  # what comes after a batch that waits waits too
                    todo.append((served, produced, partitions))
                    continue
                try:
                    if refused is not None:
                        raise refused
                    self._append(served, produced, request.acks, partitions, waits)
                except KafkaError as error:
                    partitions.append(self._failed(produced[0], error))
                except (MemoryExhausted, CeilingReached):
                    todo.append((served, produced, partitions))
        if todo:
            return Later(self._go_on(head, request, answers, waits, todo), blocks=True)
        return self._answer(head, request, answers, waits)

    def _refuse_all(self, request: produce.ProduceRequest) -> KafkaError | None:
        if request.acks not in (-1, 0, 1):
            return KafkaError(ErrorCode.invalid_required_acks, f"acks={request.acks}: use 0, 1 or -1 (all)")
        if request.transactional_id is not None:
            return KafkaError(
                ErrorCode.transactional_id_authorization_failed, "transactions are not supported yet"
            )
        return None

    def _append(
        self,
        served: ServedTopic | KafkaError,
        produced: ProducedPartition,
        acks: int,
        answers: list[PartitionAnswer],
        waits: list[_Wait],
    ) -> None:
        index, records = produced
        log = _find(served, index)
        if records is None:
            raise KafkaError(ErrorCode.invalid_record, "no record batch in the request")
        header = batch.check_produced(records, log.max_batch)
        if log.compacted:
            _check_keys(records)
        if acks == _ALL and log.short_of_replicas:
            log.excuse_gaps()
            raise KafkaError(ErrorCode.not_enough_replicas, f"{log} has too few replicas in sync")
        result = log.append(header, records)
        if result.next_offset > log.high_watermark and (acks == _ALL or not log.in_memory):
            waits.append(_Wait(log, result.next_offset, answers))
        answers.append((index, 0, result.base_offset, result.append_time, log.log_start, None))

    def _serve(self, topic: ProducedTopic) -> ServedTopic | KafkaError:
        """The topic, or the error that each of its partitions gets."""
        if topic.topic_id:
            served = self._catalog.by_id.get(topic.topic_id)
            unknown = ErrorCode.unknown_topic_id
        else:
            served = self._catalog.by_name.get(topic.name)
            unknown = ErrorCode.unknown_topic_or_partition
        if served is None:
            return KafkaError(unknown, "there is no such topic")
        if served.topic.name in INTERNAL:
            name = served.topic.name
            return KafkaError(ErrorCode.invalid_topic_exception, f"{name} is written by the broker only")
        return served

    def _failed(self, index: int, error: KafkaError) -> PartitionAnswer:
        self._stats.error(_API, error.code.name)
        return (index, error.code.value, -1, -1, -1, error.message)

    def _answer(
        self,
        head: RequestHead,
        request: produce.ProduceRequest,
        answers: list[TopicAnswer],
        waits: list[_Wait],
    ) -> Answer:
        if request.acks == 0:
            return None
        if waits:
            return self._wait(head, request.timeout_ms, answers, waits)
        return Reply((produce.write_produce(head, answers),))

    async def _go_on(
        self,
        head: RequestHead,
        request: produce.ProduceRequest,
        answers: list[TopicAnswer],
        waits: list[_Wait],
        todo: list[_Todo],
    ) -> Reply | None:
        """Append the rest as memory comes free; what finds none in time is refused, to be retried."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        await self._reserve_offsets(todo)
        for served, produced, partitions in todo:
            try:
                await self._append_patiently(served, produced, request.acks, partitions, waits, deadline)
            except KafkaError as error:
                partitions.append(self._failed(produced[0], error))
        answer = self._answer(head, request, answers, waits)
        if isinstance(answer, Promise):
            hand = Hand()
            answer.give_to(hand)
            return await hand.reply
        assert not isinstance(answer, Later)
        return answer

    async def _reserve_offsets(self, todo: list[_Todo]) -> None:
        """All partitions that need it at once; one by one, a disk round each, would take too long."""
        low: set[PartitionLog] = set()
        for served, produced, _ in todo:
            with contextlib.suppress(KafkaError):
                log = _find(served, produced[0])
                if log.log_end >= log.ceiling:
                    low.add(log)
        if low:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._store.raise_ceilings(low), PATIENCE)

    async def _append_patiently(
        self,
        served: ServedTopic | KafkaError,
        produced: ProducedPartition,
        acks: int,
        partitions: list[PartitionAnswer],
        waits: list[_Wait],
        deadline: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            full: MemoryExhausted | None = None
            try:
                self._append(served, produced, acks, partitions, waits)
                return
            except MemoryExhausted as error:
                full = error
            except CeilingReached:
                pass
            left = deadline - loop.time()
            if full is None:
                if await self._ceiling_raised(_find(served, produced[0]), left):
                    continue
                why = f"the disk says: {self._store.write_behind.failure}"
            else:
                if left > 0 and await self._store.room(full.size, left):
                    continue
                disk = self._store.write_behind.failure
                why = f"{full}; the disk says: {disk}" if disk else f"{full}; the disk can't keep up"
            _find(served, produced[0]).excuse_gaps()
            raise KafkaError(ErrorCode.kafka_storage_error, why)

    async def _ceiling_raised(self, log: PartitionLog, left: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._store.raise_ceilings([log]), max(left, 0.001))
            return True
        return False

    # Until it is committed

    def _wait(
        self, head: RequestHead, timeout_ms: int, answers: list[TopicAnswer], waits: list[_Wait]
    ) -> Promise:
        request = _Open(self, head, answers, waits, monotonic() + max(timeout_ms, 0) / 1000)
        self._open[request] = None
        request.wait()
        if self._open and not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(SWEEP, self._sweep)
        return request

    def _sweep(self) -> None:
        """One timer for all requests: few ever run into their time-out, and none minds a few ms."""
        now = monotonic()
        for request in [request for request in self._open if request.deadline <= now]:
            request.time_out()
        self._sweeping = bool(self._open)
        if self._sweeping:
            asyncio.get_running_loop().call_later(SWEEP, self._sweep)

    def closed(self, request: _Open) -> None:
        self._open.pop(request, None)
        if request.started:
            self._stats.observe(_API, perf_counter() - request.started)

    def not_committed(self, wait: _Wait, code: ErrorCode) -> None:
        if code is ErrorCode.not_leader_or_follower:
            # To librdkafka that means "not written": it would build other batches out of the records,
            # which the next leader, if it has them, can't know again. It may well have them.
            code = ErrorCode.not_enough_replicas_after_append
        error = KafkaError(code, "appended, not committed")
        wait.answers[wait.slot] = self._failed(wait.answers[wait.slot][0], error)


def _find(served: ServedTopic | KafkaError, index: int) -> PartitionLog:
    if isinstance(served, KafkaError):
        raise served
    return served.log(index)


async def committed(log: PartitionLog, offset: int, term: int, deadline: float) -> ErrorCode:
    """Wait until everything below `offset` is committed by the leadership that appended it.

    Or until that can't be any more, or not now: then the error that a producer gets.
    """
    loop = asyncio.get_running_loop()
    while True:
        code = log.fate(offset, term)
        if code is not None:
            return code
        left = deadline - loop.time()
        if left <= 0:
            return ErrorCode.request_timed_out
        moved: asyncio.Future[None] = loop.create_future()
        wake = partial(_ring, moved)
        log.wait(wake)
        try:
            await asyncio.wait_for(moved, left)
        except TimeoutError:
            pass  # looked at once more above
        finally:
            log.stop_waiting(wake)


def _ring(bell: asyncio.Future[None]) -> None:
    if not bell.done():
        bell.set_result(None)


def _check_keys(records: memoryview) -> None:
    """A compacted topic keeps the last value of each key, so each record needs one."""
    try:
        if any(record.key is None for record in decode_records(records)):
            raise KafkaError(ErrorCode.invalid_record, "a record without a key in a compacted topic")
    except CorruptRecords as error:
        raise KafkaError(ErrorCode.corrupt_message, str(error)) from None
