"""Administration, through the admin clients people use, and what they must see when it is refused."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka.errors
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import KafkaAdminClient

from harness import BrokerProcess, eventually

NOW = int(time.time() * 1000)
"""Times in tests are near it: retention deletes what is older than a week."""


@pytest.fixture(scope="module")
def admin(shared_broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared_broker.address, "log_level": 2})


@pytest.fixture(scope="module")
def python_admin(shared_broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=shared_broker.address)
    yield client
    client.close()


def new_name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def create(admin: AdminClient, partitions: int = 1, **configs: str) -> str:
    name = new_name()
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(10)
    return name


def fill(broker: BrokerProcess, topic: str, count: int, partition: int = 0, timestamp: int = 0) -> None:
    sender = Producer({"bootstrap.servers": broker.address, "linger.ms": 0, "log_level": 2})
    for n in range(count):
        sender.produce(topic, b"%d" % n, partition=partition, timestamp=timestamp + n if timestamp else 0)
        if timestamp:
            sender.flush(10)  # a batch each
    assert sender.flush(10) == 0


def refused(future: Any) -> int:
    """The error code of an admin request that must fail."""
    with pytest.raises(KafkaException) as caught:
        future.result(10)
    code: int = caught.value.args[0].code()
    return code


# Topics


def test_a_topic_is_created_described_and_deleted(admin: AdminClient) -> None:
    name = create(admin, 3)
    described = admin.describe_topics(TopicCollection([name]))[name].result(10)
    assert [p.id for p in described.partitions] == [0, 1, 2]
    assert all(p.leader.id == 1 and [n.id for n in p.isr] == [1] for p in described.partitions)
    assert not described.is_internal
    admin.delete_topics([name])[name].result(10)
    assert name not in admin.list_topics(timeout=10).topics
    assert refused(admin.delete_topics([name])[name]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_made_again_has_a_new_id_and_no_old_records(
    admin: AdminClient, shared_broker: BrokerProcess
) -> None:
    name = create(admin)
    fill(shared_broker, name, 5)
    first = admin.describe_topics(TopicCollection([name]))[name].result(10).topic_id
    admin.delete_topics([name])[name].result(10)
    admin.create_topics([NewTopic(name, 1)])[name].result(10)
    second = admin.describe_topics(TopicCollection([name]))[name].result(10).topic_id
    assert str(first) != str(second)
    place = TopicPartition(name, 0)
    found = admin.list_offsets({place: OffsetSpec.latest()})[place].result(10)
    assert found.offset == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250])
def test_illegal_topic_names_are_refused(admin: AdminClient, name: str) -> None:
    (future,) = admin.create_topics([NewTopic(name, 1)]).values()
    assert refused(future) == KafkaError.TOPIC_EXCEPTION


def test_topics_that_cannot_be_made_are_refused_with_kafkas_codes(admin: AdminClient) -> None:
    existing = create(admin)
    tries = {
        KafkaError.TOPIC_ALREADY_EXISTS: NewTopic(existing, 1),
        KafkaError.INVALID_PARTITIONS: NewTopic(new_name(), 0),
        KafkaError.INVALID_REPLICATION_FACTOR: NewTopic(new_name(), 1, 3),
        KafkaError.INVALID_CONFIG: NewTopic(new_name(), 1, config={"no.such.config": "1"}),
        KafkaError.INVALID_REPLICA_ASSIGNMENT: NewTopic(new_name(), 1, replica_assignment=[[7]]),
    }
    assert {refused(admin.create_topics([topic])[topic.topic]) for topic in tries.values()} == set(tries)


def test_validate_only_creates_nothing(admin: AdminClient) -> None:
    name = new_name()
    admin.create_topics([NewTopic(name, 2)], validate_only=True)[name].result(10)
    assert name not in admin.list_topics(timeout=10).topics


def test_the_internal_topic_is_marked_and_cannot_be_deleted_or_grown(admin: AdminClient) -> None:
    described = admin.describe_topics(TopicCollection(["__consumer_offsets"]))["__consumer_offsets"].result(
        10
    )
    assert described.is_internal
    assert refused(admin.delete_topics(["__consumer_offsets"])["__consumer_offsets"]) in (
        KafkaError.INVALID_REQUEST,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )
    more = NewPartitions("__consumer_offsets", len(described.partitions) + 1)
    assert refused(admin.create_partitions([more])["__consumer_offsets"]) == KafkaError.INVALID_REQUEST


def test_partitions_are_added_and_never_taken_away(admin: AdminClient, shared_broker: BrokerProcess) -> None:
    name = create(admin, 2)
    admin.create_partitions([NewPartitions(name, 4)], validate_only=True)[name].result(10)
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 2
    admin.create_partitions([NewPartitions(name, 4)])[name].result(10)
    fill(shared_broker, name, 3, partition=3)
    place = TopicPartition(name, 3)
    fresh = AdminClient({"bootstrap.servers": shared_broker.address})  # the other remembers two partitions
    assert fresh.list_offsets({place: OffsetSpec.latest()})[place].result(10).offset == 3
    assert refused(admin.create_partitions([NewPartitions(name, 3)])[name]) == KafkaError.INVALID_PARTITIONS
    for wrong in ([[2]], [[1], [1]], [[1, 1]]):
        more = NewPartitions(name, 5, replica_assignment=wrong)
        refusal = refused(admin.create_partitions([more])[name])
        assert refusal in (KafkaError.INVALID_REPLICA_ASSIGNMENT, KafkaError._INVALID_ARG)
    admin.create_partitions([NewPartitions(name, 5, replica_assignment=[[1]])])[name].result(10)
    gone = new_name()
    assert (
        refused(admin.create_partitions([NewPartitions(gone, 3)])[gone]) == KafkaError.UNKNOWN_TOPIC_OR_PART
    )


async def test_aiokafkas_admin_client_gets_on_too(shared_broker: BrokerProcess, admin: AdminClient) -> None:
    name = create(admin, 2)
    client = AIOKafkaAdminClient(bootstrap_servers=shared_broker.address)
    await client.start()
    try:
        assert name in await client.list_topics()
        (described,) = await client.describe_topics([name])
        assert len(described["partitions"]) == 2
        assert (await client.describe_cluster())["controller_id"] == 1
        await client.delete_topics([name])
        assert name not in await client.list_topics()
    finally:
        await client.close()


# Configs


def test_configs_are_described_with_their_sources_and_altered_one_by_one(admin: AdminClient) -> None:
    name = create(admin, retention_ms="3600000")
    resource = ConfigResource(ResourceType.TOPIC, name)

    def value(key: str) -> tuple[str, int]:
        entry = admin.describe_configs([resource])[resource].result(10)[key]
        return entry.value, entry.source

    assert value("retention.ms") == ("3600000", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    assert value("durability") == ("memory", ConfigSource.DEFAULT_CONFIG.value)

    def alter(key: str, to: str | None, operation: AlterConfigOpType) -> Any:
        entry = ConfigEntry(key, to, incremental_operation=operation)
        wanted = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        (future,) = admin.incremental_alter_configs([wanted]).values()
        return future

    alter("segment.bytes", "2097152", AlterConfigOpType.SET).result(10)
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND).result(10)
    assert value("segment.bytes")[0] == "2097152"
    assert value("retention.ms")[0] == "3600000"
    assert sorted(value("cleanup.policy")[0].split(",")) == ["compact", "delete"]
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT).result(10)
    assert value("cleanup.policy")[0] == "compact"
    alter("retention.ms", None, AlterConfigOpType.DELETE).result(10)
    assert value("retention.ms") == ("604800000", ConfigSource.DEFAULT_CONFIG.value)
    assert refused(alter("segment.bytes", "many", AlterConfigOpType.SET)) == KafkaError.INVALID_CONFIG
    assert refused(alter("no.such.config", "1", AlterConfigOpType.SET)) == KafkaError.INVALID_CONFIG
    assert refused(alter("segment.bytes", "1", AlterConfigOpType.APPEND)) == KafkaError.INVALID_CONFIG
    unclean = "unclean.leader.election.enable"
    assert refused(alter(unclean, "true", AlterConfigOpType.SET)) == KafkaError.INVALID_CONFIG
    alter(unclean, "false", AlterConfigOpType.SET).result(10)
    assert value("segment.bytes")[0] == "2097152"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_alter_configs_replaces_all_overrides(admin: AdminClient) -> None:
    name = create(admin, retention_ms="3600000", segment_bytes="2097152")
    wanted = ConfigResource(ResourceType.TOPIC, name, set_config={"retention.ms": "7200000"})
    (future,) = admin.alter_configs([wanted]).values()
    future.result(10)
    resource = ConfigResource(ResourceType.TOPIC, name)
    configs = admin.describe_configs([resource])[resource].result(10)
    assert configs["retention.ms"].value == "7200000"
    assert configs["segment.bytes"].value == "16777216"


def test_a_brokers_configs_are_shown_and_read_only(admin: AdminClient) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    configs = admin.describe_configs([resource])[resource].result(10)
    assert configs["broker.id"].value == "1"
    assert all(entry.is_read_only for entry in configs.values())
    entry = ConfigEntry("memory", "1", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    (future,) = admin.incremental_alter_configs([wanted]).values()
    assert refused(future) == KafkaError.INVALID_REQUEST


def test_a_brokers_rack_is_told_under_kafkas_name(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, environment={"PENSTOCK_RACK": "r1"}) as broker:
        broker.start()
        resource = ConfigResource(ResourceType.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 2})
        configs = admin.describe_configs([resource])[resource].result(10)
        assert (configs["broker.rack"].value, configs["rack"].value) == ("r1", "r1")


def test_configs_of_an_unknown_topic_are_an_error(admin: AdminClient) -> None:
    resource = ConfigResource(ResourceType.TOPIC, new_name())
    assert refused(admin.describe_configs([resource])[resource]) == KafkaError.UNKNOWN_TOPIC_OR_PART


# Records and offsets


def test_deleted_records_are_gone_and_the_rest_stays(
    admin: AdminClient, shared_broker: BrokerProcess
) -> None:
    name = create(admin)
    fill(shared_broker, name, 10)
    place = TopicPartition(name, 0, 6)
    done = admin.delete_records([place])[place].result(10)
    assert done.low_watermark == 6
    reader = Consumer({"bootstrap.servers": shared_broker.address, "group.id": "x", "log_level": 2})
    reader.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
    message = reader.poll(10)
    assert (message.offset(), message.value()) == (6, b"6")
    reader.close()
    assert refused(admin.delete_records([TopicPartition(name, 0, 11)])[TopicPartition(name, 0, 11)]) == (
        KafkaError.OFFSET_OUT_OF_RANGE
    )


def test_offsets_are_found_by_place_time_and_largest_time(
    admin: AdminClient, shared_broker: BrokerProcess
) -> None:
    name = create(admin)
    fill(shared_broker, name, 5, timestamp=NOW)
    fill(shared_broker, name, 1, timestamp=NOW + 9000)
    fill(shared_broker, name, 3, timestamp=NOW + 3000)
    place = TopicPartition(name, 0)

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        found = admin.list_offsets({place: spec})[place].result(10)
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest()) == (0, -1)
    assert offset(OffsetSpec.latest()) == (9, -1)
    assert offset(OffsetSpec.max_timestamp()) == (5, NOW + 9000)
    assert offset(OffsetSpec.for_timestamp(NOW + 3)) == (3, NOW + 3)
    assert offset(OffsetSpec.for_timestamp(NOW + 5)) == (5, NOW + 9000)
    assert offset(OffsetSpec.for_timestamp(NOW + 9001)) == (-1, -1)


# Groups


def group_config(broker: BrokerProcess, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "client.id": "the-client",
        "log_level": 2,
    }


def test_groups_are_listed_described_and_deleted_only_when_empty(
    admin: AdminClient, shared_broker: BrokerProcess
) -> None:
    name, group = create(admin, 2), new_name()
    reader = Consumer(group_config(shared_broker, group))
    reader.subscribe([name])
    eventually(lambda: reader.poll(0.1) is None and len(reader.assignment()) == 2, 20)
    listed = {g.group_id: g.state for g in admin.list_consumer_groups().result(10).valid}
    assert listed[group] == ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups([group])[group].result(10)
    assert described.state == ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    (member,) = described.members
    assert (member.client_id, member.host) == ("the-client", "127.0.0.1")
    assert sorted(p.partition for p in member.assignment.topic_partitions) == [0, 1]
    assert refused(admin.delete_consumer_groups([group])[group]) == KafkaError.NON_EMPTY_GROUP
    reader.commit(offsets=[TopicPartition(name, 0, 0)], asynchronous=False)
    reader.close()
    only_empty = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(10).valid
    assert group in {g.group_id for g in only_empty}
    admin.delete_consumer_groups([group])[group].result(10)
    assert group not in {g.group_id for g in admin.list_consumer_groups().result(10).valid}
    assert refused(admin.delete_consumer_groups([group])[group]) == KafkaError.GROUP_ID_NOT_FOUND


def test_group_offsets_are_altered_listed_and_deleted(
    admin: AdminClient, python_admin: KafkaAdminClient, shared_broker: BrokerProcess
) -> None:
    name, group = create(admin, 2), new_name()
    places = [TopicPartition(name, 0, 5), TopicPartition(name, 1, 7)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group].result(10)

    def offsets() -> dict[int, int]:
        found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
        return {p.partition: p.offset for p in found.topic_partitions if p.topic == name}

    assert offsets() == {0: 5, 1: 7}
    outcome = python_admin.delete_group_offsets(group, [PythonTopicPartition(name, 1)])
    assert outcome == {PythonTopicPartition(name, 1): kafka.errors.NoError}
    assert offsets() == {0: 5}


def test_offsets_of_a_subscribed_topic_are_not_deleted(
    admin: AdminClient, python_admin: KafkaAdminClient, shared_broker: BrokerProcess
) -> None:
    name, group = create(admin), new_name()
    reader = Consumer(group_config(shared_broker, group))
    reader.subscribe([name])
    eventually(lambda: reader.poll(0.1) is None and len(reader.assignment()) == 1, 20)
    reader.commit(offsets=[TopicPartition(name, 0, 0)], asynchronous=False)
    outcome = python_admin.delete_group_offsets(group, [PythonTopicPartition(name, 0)])
    assert outcome == {PythonTopicPartition(name, 0): kafka.errors.GroupSubscribedToTopicError}
    reader.close()


def test_a_deleted_topic_takes_its_group_offsets_with_it(
    admin: AdminClient, shared_broker: BrokerProcess
) -> None:
    name, kept, group = create(admin), create(admin), new_name()
    places = [TopicPartition(name, 0, 5), TopicPartition(kept, 0, 7)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group].result(10)
    admin.delete_topics([name])[name].result(10)

    def offsets() -> list[tuple[str, int]]:
        found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
        return [(p.topic, p.offset) for p in found.topic_partitions]

    eventually(lambda: offsets() == [(kept, 7)])


# The cluster


def test_the_cluster_is_described(admin: AdminClient, shared_broker: BrokerProcess) -> None:
    described = admin.describe_cluster().result(10)
    assert described.controller.id == 1
    assert [(n.id, f"{n.host}:{n.port}") for n in described.nodes] == [(1, shared_broker.address)]
    assert described.cluster_id


def test_log_dirs_tell_sizes(
    admin: AdminClient, python_admin: KafkaAdminClient, shared_broker: BrokerProcess
) -> None:
    name = create(admin, 2)
    fill(shared_broker, name, 100, partition=1)
    (answer,) = python_admin.describe_log_dirs({name: [0, 1]})
    (directory,) = answer["log_dirs"]
    (topic,) = directory["topics"]
    sizes = {p["partition_index"]: p["partition_size"] for p in topic["partitions"]}
    assert sizes[0] == 0
    assert sizes[1] > 100


def test_everything_an_admin_did_survives_kill_nine(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 2})
    name, gone = create(admin, 2, retention_ms="3600000"), create(admin)
    fill(broker, name, 10)
    admin.create_partitions([NewPartitions(name, 3)])[name].result(10)
    place = TopicPartition(name, 0, 4)
    admin.delete_records([place])[place].result(10)
    admin.delete_topics([gone])[gone].result(10)
    before = admin.describe_topics(TopicCollection([name]))[name].result(10)
    broker.kill()
    broker.start()
    after = admin.describe_topics(TopicCollection([name]), request_timeout=20)[name].result(20)
    assert (str(after.topic_id), len(after.partitions)) == (str(before.topic_id), 3)
    assert gone not in admin.list_topics(timeout=10).topics
    resource = ConfigResource(ResourceType.TOPIC, name)
    assert admin.describe_configs([resource])[resource].result(10)["retention.ms"].value == "3600000"
    found = admin.list_offsets({TopicPartition(name, 0): OffsetSpec.earliest()})
    assert found[TopicPartition(name, 0)].result(10).offset == 4
