"""What is written to `__consumer_offsets`: Kafka's own bytes, and what we make of them again."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups import CommittedOffset, partition_for
from penstock.broker.groups.schema import (
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_key,
    encode_offset,
    subscribed_topics,
)
from penstock.wire.records import CorruptRecords

names = st.text(max_size=30)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
keys = st.builds(OffsetKey, names, st.tuples(names, i32)) | st.builds(GroupKey, names)
members = st.builds(
    StoredMember,
    names,
    st.none() | names,
    names,
    names,
    i32,
    i32,
    st.binary(max_size=50),
    st.binary(max_size=50),
)
groups = st.builds(
    StoredGroup,
    names,
    i32,
    st.none() | names,
    st.none() | names,
    i64,
    st.lists(members, max_size=4).map(tuple),
)


@given(keys)
def test_keys_are_read_as_written(key: OffsetKey | GroupKey) -> None:
    assert decode_key(encode_key(key)) == key


@given(i64, i32, names, i64)
def test_offsets_are_read_as_written(offset: int, epoch: int, metadata: str, moment: int) -> None:
    committed = CommittedOffset(offset, epoch, metadata, moment)
    assert decode_offset(encode_offset(committed)) == committed


def test_offsets_with_an_expiry_are_read_as_written() -> None:
    committed = CommittedOffset(7, -1, "m", 1000, expire_timestamp=2000)
    assert decode_offset(encode_offset(committed)) == committed


@given(groups)
def test_groups_are_read_as_written(group: StoredGroup) -> None:
    assert decode_group(encode_group(group)) == group


def test_the_bytes_are_kafkas() -> None:
    """Written down from the schemas in Kafka's group-coordinator (OffsetCommitKey, ...Value)."""
    assert encode_key(OffsetKey("g", ("t", 3))) == b"\0\1\0\1g\0\1t\0\0\0\3"
    assert encode_key(GroupKey("g")) == b"\0\2\0\1g"
    committed = CommittedOffset(5, 2, "m", 9)
    assert encode_offset(committed) == struct.pack(">hqih1sq", 3, 5, 2, 1, b"m", 9)
    expiring = CommittedOffset(5, -1, "m", 9, 10)
    assert encode_offset(expiring) == struct.pack(">hqh1sqq", 1, 5, 1, b"m", 9, 10)
    member = StoredMember("m", None, "c", "h", 7, 8, b"sub", b"as")
    group = StoredGroup("consumer", 4, "range", "m", 6, (member,))
    assert encode_group(group) == (
        b"\0\3"
        + b"\0\x08consumer"
        + b"\0\0\0\4"
        + b"\0\5range"
        + b"\0\1m"
        + struct.pack(">q", 6)
        + b"\0\0\0\1"
        b"\0\1m" + b"\xff\xff" + b"\0\1c" + b"\0\1h" + b"\0\0\0\7" + b"\0\0\0\x08"
        b"\0\0\0\3sub" + b"\0\0\0\2as"
    )


def test_a_key_of_a_later_version_is_left_alone() -> None:
    assert decode_key(b"\0\x63whatever") is None


@given(st.binary(max_size=60))
def test_broken_bytes_are_corrupt_or_fine_and_nothing_else(noise: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group, subscribed_topics):
        with contextlib.suppress(CorruptRecords):
            decode(noise)
    for start in (b"\0\1", b"\0\3"):
        for decode in (decode_offset, decode_group):
            with contextlib.suppress(CorruptRecords):
                decode(start + noise)


def test_subscriptions_name_their_topics() -> None:
    subscription = b"\0\1" + b"\0\0\0\2" + b"\0\1a" + b"\0\2bc" + b"\xff\xff\xff\xff" + b"\0\0\0\0"
    assert subscribed_topics(subscription) == {"a", "bc"}


@pytest.mark.parametrize(
    ("group", "java_hash"),
    [
        ("", 0),
        ("hello", 99162322),
        ("BB", 2112),
        ("\N{GRINNING FACE}", 1772899),
        ("my-group", None),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_a_groups_partition_is_the_one_kafka_takes(group: str, java_hash: int | None) -> None:
    if java_hash is None:
        java_hash = 0
        for letter in group:
            java_hash = 31 * java_hash + ord(letter)
        java_hash = (java_hash + 2**31) % 2**32 - 2**31
    positive = 0 if java_hash == -(2**31) else abs(java_hash)
    assert partition_for(group, 50) == positive % 50
    assert partition_for(group, 7) == positive % 7
