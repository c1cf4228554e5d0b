"""Every version of every API that ApiVersions advertises is served, byte for byte as the schemas say."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any
from uuid import UUID

import pytest

from harness import BrokerProcess
from penstock.wire.apis import SUPPORTED, ApiKey
from penstock.wire.errors import ErrorCode
from rawclient import RawClient, record_batch
from samples import EVERY_VERSION, sample

EXPECTED_ERRORS = {
    ApiKey.HEARTBEAT: {ErrorCode.unknown_member_id},
    ApiKey.LEAVE_GROUP: {ErrorCode.unknown_member_id},
    ApiKey.SYNC_GROUP: {ErrorCode.unknown_member_id},
    ApiKey.JOIN_GROUP: {ErrorCode.none, ErrorCode.member_id_required},
    ApiKey.DELETE_TOPICS: {ErrorCode.unknown_topic_or_partition},
    ApiKey.DELETE_GROUPS: {ErrorCode.group_id_not_found},
}
"""What the samples ask for that isn't there; everything else succeeds."""


@pytest.fixture(scope="module")
def topic(shared_broker: BrokerProcess) -> tuple[str, UUID]:
    name = "versions"
    with RawClient(shared_broker.address) as client:
        (made,) = client.ask(
            19,
            7,
            topics=[{"name": name, "num_partitions": 1, "replication_factor": 1}],
            timeout=1000,
        ).topics
        assert made.error_code is ErrorCode.none
        client.ask(8, 8, **sample(ApiKey.OFFSET_COMMIT, name, made.topic_id))
        return name, made.topic_id


def error_codes(response: Any) -> Iterator[ErrorCode]:
    for field in fields(response):
        value = getattr(response, field.name)
        if isinstance(value, ErrorCode):
            yield value
        elif is_dataclass(value):
            yield from error_codes(value)
        elif isinstance(value, tuple):
            for entry in value:
                if is_dataclass(entry):
                    yield from error_codes(entry)


def test_api_versions_tells_the_truth_in_every_version(shared_broker: BrokerProcess) -> None:
    with RawClient(shared_broker.address) as client:
        for version in range(5):
            answer = client.ask(18, version, client_software_name="raw", client_software_version="1")
            advertised = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
            assert advertised == {int(key): tuple(versions) for key, versions in SUPPORTED.items()}


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", value))
def test_every_advertised_version_is_served(
    shared_broker: BrokerProcess, topic: tuple[str, UUID], key: ApiKey, version: int
) -> None:
    with RawClient(shared_broker.address) as client:
        tree = sample(key, *topic)
        if key is ApiKey.JOIN_GROUP:
            tree["group_id"] = f"join-{version}"
        response = client.ask(key, version, **tree)
        expected = EXPECTED_ERRORS.get(key, {ErrorCode.none})
        assert set(error_codes(response)) - {ErrorCode.none} <= expected
        client.ask(ApiKey.API_VERSIONS, 0)  # the connection is still good


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_of_every_version_is_read_back(
    shared_broker: BrokerProcess, topic: tuple[str, UUID], version: int
) -> None:
    name, topic_id = topic
    value = b"written with version %d" % version
    with RawClient(shared_broker.address) as client:
        tree = sample(ApiKey.PRODUCE, name, topic_id)
        tree["topic_data"][0]["partition_data"][0]["records"] = record_batch([value])
        (answered,) = client.ask(0, version, **tree).responses
        (partition,) = answered.partition_responses
        assert partition.error_code is ErrorCode.none
        if version >= 13:
            assert answered.topic_id == topic_id
        else:
            assert answered.name == name
        fetch = sample(ApiKey.FETCH, name, topic_id)
        fetch["topics"][0]["partitions"][0]["fetch_offset"] = partition.base_offset
        (fetched,) = client.ask(1, 17, **fetch).responses
        assert value in fetched.partitions[0].records


@pytest.mark.parametrize("version", range(4, 18))
def test_fetch_of_every_version_gives_the_same_batches(
    shared_broker: BrokerProcess, topic: tuple[str, UUID], version: int
) -> None:
    name, topic_id = topic
    with RawClient(shared_broker.address) as client:
        produced = client.ask(0, 12, **sample(ApiKey.PRODUCE, name, topic_id))
        offset = produced.responses[0].partition_responses[0].base_offset
        tree = sample(ApiKey.FETCH, name, topic_id)
        tree["topics"][0]["partitions"][0]["fetch_offset"] = offset
        (fetched,) = client.ask(1, version, **tree).responses
        (partition,) = fetched.partitions
        batch = record_batch([b"a", b"b"], base_offset=offset)
        assert partition.records[:8] == batch[:8]
        assert partition.records[16:] == batch[16:]  # all but the leader epoch
        assert partition.high_watermark == partition.last_stable_offset == offset + 2
        assert (fetched.topic_id == topic_id) if version >= 13 else (fetched.topic == name)


def test_a_topic_id_that_does_not_exist_is_told_so(shared_broker: BrokerProcess) -> None:
    nobody = uuid.uuid4()
    with RawClient(shared_broker.address) as client:
        (produced,) = client.ask(0, 13, **sample(ApiKey.PRODUCE, "x", nobody)).responses
        assert produced.topic_id == nobody
        assert produced.partition_responses[0].error_code is ErrorCode.unknown_topic_id
        (fetched,) = client.ask(1, 16, **sample(ApiKey.FETCH, "x", nobody)).responses
        assert fetched.topic_id == nobody
        assert fetched.partitions[0].error_code is ErrorCode.unknown_topic_id
        (described,) = client.ask(3, 13, topics=[{"name": None, "topic_id": nobody}]).topics
        assert described.error_code is ErrorCode.unknown_topic_id
        (deleted,) = client.ask(20, 6, timeout=1, topics=[{"name": None, "topic_id": nobody}]).responses
        assert deleted.error_code is ErrorCode.unknown_topic_id


def test_metadata_by_id_gives_the_name(shared_broker: BrokerProcess, topic: tuple[str, UUID]) -> None:
    name, topic_id = topic
    with RawClient(shared_broker.address) as client:
        for version in (12, 13):
            (found,) = client.ask(3, version, topics=[{"name": None, "topic_id": topic_id}]).topics
            assert (found.name, found.topic_id) == (name, topic_id)


def test_metadata_of_all_topics_of_some_and_of_none(
    shared_broker: BrokerProcess, topic: tuple[str, UUID]
) -> None:
    with RawClient(shared_broker.address) as client:
        for version in range(1, 14):
            everything = {entry.name for entry in client.ask(3, version, topics=None).topics}
            assert everything >= {topic[0], "__consumer_offsets"}
            assert client.ask(3, version, topics=[]).topics == ()
        assert {entry.name for entry in client.ask(3, 0, topics=[]).topics} == everything


def test_a_fetch_session_is_refused_so_that_clients_fetch_in_full(
    shared_broker: BrokerProcess, topic: tuple[str, UUID]
) -> None:
    with RawClient(shared_broker.address) as client:
        tree = sample(ApiKey.FETCH, *topic)
        answer = client.ask(1, 16, **{**tree, "session_epoch": 0})
        assert (answer.error_code, answer.session_id) == (ErrorCode.none, 0)
        answer = client.ask(1, 16, **{**tree, "session_id": 77, "session_epoch": 3})
        assert answer.error_code is ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize("version", range(10))
def test_a_group_lives_its_life_in_every_version(
    shared_broker: BrokerProcess, topic: tuple[str, UUID], version: int
) -> None:
    name, topic_id = topic
    group = f"life-{version}"
    with RawClient(shared_broker.address) as client:
        tree = {**sample(ApiKey.JOIN_GROUP, name, topic_id), "group_id": group}
        joined = client.ask(11, version, **tree)
        if version >= 4:
            assert joined.error_code is ErrorCode.member_id_required
            joined = client.ask(11, version, **{**tree, "member_id": joined.member_id})
        assert joined.error_code is ErrorCode.none
        assert joined.leader == joined.member_id
        assert [member.member_id for member in joined.members] == [joined.member_id]
        member = {"group_id": group, "member_id": joined.member_id, "generation_id": joined.generation_id}
        protocol = {"protocol_type": "consumer", "protocol_name": "range"}
        synced = client.ask(
            14,
            min(version, 5),
            assignments=[{"member_id": joined.member_id, "assignment": b"mine"}],
            **member,
            **protocol,
        )
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"mine")
        beat = client.ask(12, min(version, 4), **member)
        assert beat.error_code is ErrorCode.none
        commit = sample(ApiKey.OFFSET_COMMIT, name, topic_id) | member
        commit["generation_id_or_member_epoch"] = joined.generation_id
        commit["topics"][0]["partitions"][0]["committed_offset"] = 1
        committed = client.ask(8, min(max(version, 2), 9), **commit)
        assert committed.topics[0].partitions[0].error_code is ErrorCode.none
        fetch = sample(ApiKey.OFFSET_FETCH, name, topic_id, group)
        fetched = client.ask(9, min(max(version, 1), 9), **fetch)
        topics = fetched.groups[0].topics if version >= 8 else fetched.topics
        assert topics[0].partitions[0].committed_offset == 1
        described = client.ask(15, min(version, 6), groups=[group]).groups[0]
        assert (described.group_state, described.protocol_data) == ("Stable", "range")
        left = client.ask(13, min(version, 5), members=[{"member_id": joined.member_id}], **member)
        assert left.error_code is ErrorCode.none
        assert client.ask(15, min(version, 6), groups=[group]).groups[0].group_state == "Empty"
        deleted = client.ask(42, min(version, 2), groups_names=[group])
        assert deleted.results[0].error_code is ErrorCode.none
