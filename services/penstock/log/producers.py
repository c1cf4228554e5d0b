"""Idempotent producers: which batches a partition already has.

Per producer id the epoch and the last five batches, as Kafka keeps them: five is how many requests an
idempotent producer may have on their way. A snapshot is written whenever a segment is sealed, so that
recovery walks only what came after it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.wire.batch import BatchHeader
from penstock.wire.errors import ErrorCode, KafkaError

REMEMBERED: Final = 5
_SEQUENCES: Final = 1 << 31
_MAGIC: Final = b"PSTKPID1"
_ENTRY: Final = struct.Struct("<qhqI")
_BATCH: Final = struct.Struct("<iiq")


class Appended(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int


class Producer:
    __slots__ = ("batches", "epoch", "last_append", "may_skip")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[Appended] = deque(maxlen=REMEMBERED)
        self.may_skip = False
        """Records of it may have been lost with the machine's memory: its next sequence may be any later."""
        self.last_append = 0
        """When, by this broker's clock: a replay of old records is not an old producer."""


class ProducerTable:
    """The producers of one partition. `find_duplicate` before an append, `record` after it."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._producers.items())

    def find_duplicate(self, header: BatchHeader) -> Appended | None:
        """The earlier append of this very batch, None if it is the next one; else the fitting error."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None  # unknown here (new, or expired): any first sequence will do, as in Kafka
        if header.producer_epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {producer.epoch}, not {header.producer_epoch}",
            )
        first = header.base_sequence
        if header.producer_epoch > producer.epoch:
            if first != 0:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id} begins epoch {header.producer_epoch} at {first}",
                )
            return None
        if not producer.batches:
            return None
        last = (first + header.last_offset_delta) % _SEQUENCES
        newest = producer.batches[-1]
        if first == (newest.last_sequence + 1) % _SEQUENCES:
            return None
        for appended in producer.batches:
            if appended.first_sequence == first and appended.last_sequence == last:
                return appended
        if producer.may_skip and first > newest.last_sequence:
            return None
        oldest = producer.batches[0]
        if first < oldest.first_sequence and newest.last_sequence >= oldest.first_sequence:
            raise KafkaError(ErrorCode.duplicate_sequence_number, "a batch from before the last five")
        raise KafkaError(
            ErrorCode.out_of_order_sequence_number,
            f"producer {header.producer_id}: sequence {first} after {newest.last_sequence}",
        )

    def is_early(self, header: BatchHeader) -> bool:
        """Whether something of this producer should have come before."""
        producer = self._producers.get(header.producer_id)
        if producer is None or not producer.batches or producer.epoch != header.producer_epoch:
            return header.base_sequence > 0
        return not producer.may_skip and header.base_sequence > producer.batches[-1].last_sequence + 1

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = Producer(header.producer_epoch)
        first = header.base_sequence
        last = (first + header.last_offset_delta) % _SEQUENCES
        producer.batches.append(Appended(first, last, base_offset))
        producer.last_append = now_ms
        producer.may_skip = False

    def expire(self, before: int) -> None:
        """Forget producers whose last append was before `before` (milliseconds)."""
        for producer_id in [p for p, state in self._producers.items() if state.last_append < before]:
            del self._producers[producer_id]

    def forgive_gaps(self) -> None:
        """After a loss a producer goes on where it was, not where the log is; a retry is still recognised."""
        for producer in self._producers.values():
            producer.may_skip = True

    def encode(self) -> bytes:
        parts = []
        for producer_id, producer in self._producers.items():
            parts.append(
                _ENTRY.pack(producer_id, producer.epoch, producer.last_append, len(producer.batches))
            )
            parts.extend(_BATCH.pack(*appended) for appended in producer.batches)
        body = b"".join(parts)
        return _MAGIC + struct.pack("<I", crc32c(body)) + body

    @classmethod
    def decode(cls, encoded: bytes) -> ProducerTable | None:
        """None for anything but a whole snapshot."""
        if encoded[:8] != _MAGIC or len(encoded) < 12:
            return None
        body = encoded[12:]
        if crc32c(body) != int.from_bytes(encoded[8:12], "little"):
            return None
        table = cls()
        position = 0
        while position < len(body):
            producer_id, epoch, last_append, count = _ENTRY.unpack_from(body, position)
            position += _ENTRY.size
            producer = table._producers[producer_id] = Producer(epoch)
            producer.last_append = last_append
            for _ in range(count):
                producer.batches.append(Appended._make(_BATCH.unpack_from(body, position)))
                position += _BATCH.size
        return table
