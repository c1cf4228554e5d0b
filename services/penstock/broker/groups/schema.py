"""Keys and values of `__consumer_offsets`, as Apache Kafka writes them, so that its tools can read the topic.

    key    i16 version: 1 (0 is read too) group, topic, i32 partition: a committed offset
                        2                 group:                       a group's metadata
    value  offset    1 (has an expiry) or 3;    metadata  3;    no value (a tombstone): deleted

Strings have an i16 length, bytes and arrays an i32 one; -1 is null. Nothing here waits or keeps state.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock.broker.groups.model import CommittedOffset, TopicPartition
from penstock.wire.records import CorruptRecords

_OFFSET_KEYS: Final = (0, 1)
_GROUP_KEY: Final = 2
_OFFSET_WITH_EXPIRY: Final = 1
_OFFSET: Final = 3
_METADATA: Final = 3

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class StoredMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[StoredMember, ...]


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    if isinstance(key, GroupKey):
        return _I16.pack(_GROUP_KEY) + _string(key.group_id)
    topic, partition = key.topic_partition
    return _I16.pack(1) + _string(key.group_id) + _string(topic) + _I32.pack(partition)


def decode_key(encoded: bytes) -> OffsetKey | GroupKey | None:
    """None for a version we don't know: a later Penstock's, which an older one must not stumble over."""
    reader = _Reader(encoded)
    version = reader.i16()
    if version in _OFFSET_KEYS:
        return OffsetKey(reader.text(), (reader.text(), reader.i32()))
    return GroupKey(reader.text()) if version == _GROUP_KEY else None


def encode_offset(committed: CommittedOffset) -> bytes:
    offset, metadata = _I64.pack(committed.offset), _string(committed.metadata)
    moment = _I64.pack(committed.commit_timestamp)
    if committed.expire_timestamp is not None:
        expiry = _I64.pack(committed.expire_timestamp)
        return _I16.pack(_OFFSET_WITH_EXPIRY) + offset + metadata + moment + expiry
    return _I16.pack(_OFFSET) + offset + _I32.pack(committed.leader_epoch) + metadata + moment


def decode_offset(encoded: bytes) -> CommittedOffset:
    reader = _Reader(encoded)
    version = reader.i16()
    if version == _OFFSET_WITH_EXPIRY:
        return CommittedOffset(reader.i64(), -1, reader.text(), reader.i64(), reader.i64())
    if version == _OFFSET:
        return CommittedOffset(reader.i64(), reader.i32(), reader.text(), reader.i64())
    raise CorruptRecords(f"committed offset of unknown version {version}")


def encode_group(group: StoredGroup) -> bytes:
    out = bytearray(_I16.pack(_METADATA))
    out += _string(group.protocol_type)
    out += _I32.pack(group.generation)
    out += _string(group.protocol)
    out += _string(group.leader)
    out += _I64.pack(group.state_timestamp)
    out += _I32.pack(len(group.members))
    for member in group.members:
        out += _string(member.member_id)
        out += _string(member.instance_id)
        out += _string(member.client_id)
        out += _string(member.host)
        out += _I32.pack(member.rebalance_timeout_ms)
        out += _I32.pack(member.session_timeout_ms)
        out += _I32.pack(len(member.subscription)) + member.subscription
        out += _I32.pack(len(member.assignment)) + member.assignment
    return bytes(out)


def decode_group(encoded: bytes) -> StoredGroup:
    reader = _Reader(encoded)
    version = reader.i16()
    if version != _METADATA:
        raise CorruptRecords(f"group metadata of unknown version {version}")
    return StoredGroup(
        protocol_type=reader.text(),
        generation=reader.i32(),
        protocol=reader.string(),
        leader=reader.string(),
        state_timestamp=reader.i64(),
        members=tuple(_decode_member(reader) for _ in range(reader.i32())),
    )


def _decode_member(reader: _Reader) -> StoredMember:
    return StoredMember(
        member_id=reader.text(),
        instance_id=reader.string(),
        client_id=reader.text(),
        host=reader.text(),
        rebalance_timeout_ms=reader.i32(),
        session_timeout_ms=reader.i32(),
        subscription=reader.blob(),
        assignment=reader.blob(),
    )


def subscribed_topics(subscription: bytes) -> frozenset[str]:
    """Topics in a consumer's subscription: every version starts with i16 version, array of names."""
    reader = _Reader(subscription)
    reader.i16()
    return frozenset(reader.text() for _ in range(reader.i32()))


def _string(text: str | None) -> bytes:
    if text is None:
        return _I16.pack(-1)
    encoded = text.encode()
    return _I16.pack(len(encoded)) + encoded


class _Reader:
    """Takes fields off the front of a buffer; what isn't there is CorruptRecords."""

    __slots__ = ("_at", "_buffer")

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._at = 0

    def i16(self) -> int:
        return self._number(_I16)

    def i32(self) -> int:
        return self._number(_I32)

    def i64(self) -> int:
        return self._number(_I64)

    def string(self) -> str | None:
        length = self.i16()
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise CorruptRecords("text is not UTF-8") from None

    def text(self) -> str:
        return self.string() or ""

    def blob(self) -> bytes:
        return self._take(max(self.i32(), 0))

    def _number(self, kind: struct.Struct) -> int:
        number: int = kind.unpack(self._take(kind.size))[0]
        return number

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._buffer):
            raise CorruptRecords(f"{size} bytes wanted at {start} of {len(self._buffer)}")
        return self._buffer[start : self._at]
