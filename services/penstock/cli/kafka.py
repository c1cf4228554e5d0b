"""A small Kafka client for administration: requests as kio's messages, to the broker that must have them.

For `penstock topic`, `group` and `load`. Producing and consuming go through aiokafka, which knows how to
batch and to rebalance; this knows how to ask one question and to say in one line what went wrong.
"""

from __future__ import annotations

import asyncio
import io
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

from kio.index import load_response_schema
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i32, i64

from penstock.cli.terminal import CommandFailed
from penstock.wire.errors import ErrorCode

EARLIEST: Final = -2
LATEST: Final = -1
"""Timestamps that ListOffsets takes for the two ends of a log."""

_CONNECT_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 30.0
_NOT_YET: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
    }
)
_NOT_YET_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.05
_LENGTH: Final = struct.Struct(">i")
_CLIENT_ID: Final = "penstock-cli"

TopicPartition = tuple[str, int]


class PartitionLayout(NamedTuple):
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class TopicLayout(NamedTuple):
    name: str
    topic_id: str
    internal: bool
    partitions: list[PartitionLayout]


def check(code: ErrorCode, message: str | None, what: str) -> None:
    """Raise for an answer that is an error, with the broker's own words if it has any."""
    if code != ErrorCode.none:
        raise CommandFailed(message or f"{what}: {code.name.replace('_', ' ')}")


class _Link:
    """One connection; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._correlation = 0

    @classmethod
    async def open(cls, address: str) -> Self:
        host, separator, port = address.rpartition(":")
        if not separator or not port.isdigit():
            raise CommandFailed(f"{address!r} is not HOST:PORT")
        try:
            opening = asyncio.open_connection(host.strip("[]"), int(port))
            reader, writer = await asyncio.wait_for(opening, _CONNECT_SECONDS)
        except (OSError, TimeoutError):
            raise no_broker(address) from None
        return cls(reader, writer, address)

    async def ask(self, request: Any) -> Any:
        self._correlation += 1
        frame = io.BytesIO()
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(self._correlation),
            client_id=_CLIENT_ID,
        )
        entity_writer(type(header))(frame, header)
        entity_writer(type(request))(frame, request)
        self._writer.write(_LENGTH.pack(frame.tell()) + frame.getvalue())
        try:
            answer = await asyncio.wait_for(self._receive(), _ANSWER_SECONDS)
        except TimeoutError:
            raise CommandFailed(f"{self._address} took the request and did not answer in time") from None
        except (OSError, EOFError):
            raise CommandFailed(
                f"{self._address} closed the connection: it is no Kafka broker, or is just stopping"
            ) from None
        schema = load_response_schema(request.__api_key__, request.__version__)
        _, at = entity_reader(schema.__header_schema__)(answer, 0)
        body, _ = entity_reader(schema)(answer, at)
        return body

    async def _receive(self) -> memoryview:
        (size,) = _LENGTH.unpack(await self._reader.readexactly(4))
        return memoryview(await self._reader.readexactly(size))

    def close(self) -> None:
        self._writer.close()


def no_broker(address: str) -> CommandFailed:
    return CommandFailed(
        f"no broker answers at {address}; start one with `penstock broker`, or name it with --broker"
    )


class Cluster:
    """The brokers behind one address, or several with commas. `async with Cluster(address) as cluster`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap, *self._others = (address.strip() for address in bootstrap.split(","))
        self._links: dict[str, _Link] = {}
        self._addresses: dict[int, str] = {}

    async def __aenter__(self) -> Self:
        while True:
            try:
                await self._link(self._bootstrap)
                return self
            except CommandFailed:
                if not self._others:
                    raise
                self._bootstrap = self._others.pop(0)

    async def __aexit__(self, *_: object) -> None:
        for link in self._links.values():
            link.close()

    async def _link(self, address: str) -> _Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = await _Link.open(address)
        return link

    async def ask(self, request: Any, broker: int | None = None) -> Any:
        """Ask a broker by its id, or any."""
        address = self._bootstrap if broker is None else self.address_of(broker)
        return await (await self._link(address)).ask(request)

    def address_of(self, broker: int) -> str:
        """Known for brokers that an answer to `topics` or `coordinator` has named."""
        try:
            return self._addresses[broker]
        except KeyError:
            raise CommandFailed(f"broker {broker} leads what was asked for and is not there") from None

    async def topics(self, names: Iterable[str] | None = None) -> list[TopicLayout]:
        """All topics, or these; one that isn't there is an error."""
        wanted = None
        if names is not None:
            wanted = tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names)
        answer = await self.ask(
            MetadataRequest(
                topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
        )
        for broker in answer.brokers:
            self._addresses[broker.node_id] = f"{broker.host}:{broker.port}"
        layouts = []
        for topic in answer.topics:
            if topic.error_code == ErrorCode.unknown_topic_or_partition:
                raise CommandFailed(f"there is no topic {topic.name!r}; see `penstock topic list`")
            check(topic.error_code, None, f"topic {topic.name}")
            layouts.append(_layout(topic))
        return sorted(layouts)

    async def brokers(self) -> list[int]:
        await self.topics([])
        return sorted(self._addresses)

    async def coordinator(self, group: str) -> int:
        answer = await self.ask(FindCoordinatorRequest(key=group, key_type=i8(0)))
        check(answer.error_code, answer.error_message, f"group {group}")
        self._addresses[answer.node_id] = f"{answer.host}:{answer.port}"
        return int(answer.node_id)

    async def offsets(self, topics: Iterable[TopicLayout], timestamp: int) -> dict[TopicPartition, int]:
        """The first offset at or after a time, of every partition; -1 where there is none."""
        by_leader: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic in topics:
            for place in topic.partitions:
                by_leader[place.leader][topic.name].append(place.partition)
        found: dict[TopicPartition, int] = {}
        for leader, wanted in by_leader.items():
            request = _list_offsets(wanted, timestamp)
            deadline = asyncio.get_running_loop().time() + _NOT_YET_SECONDS
            while True:
                answer = await self.ask(request, leader)
                parts = [(str(each.name), part) for each in answer.topics for part in each.partitions]
                # A topic that is just being made is listed a moment before it is served.
                waits = any(part.error_code in _NOT_YET for _, part in parts)
                if not waits or asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(_PAUSE_SECONDS)
            for name, part in parts:
                check(part.error_code, None, f"{name}-{part.partition_index}")
                found[name, int(part.partition_index)] = int(part.offset)
        return found


def _list_offsets(wanted: Mapping[str, Iterable[int]], timestamp: int) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(
            name=TopicName(name),
            partitions=tuple(
                ListOffsetsPartition(partition_index=i32(index), timestamp=i64(timestamp))
                for index in indexes
            ),
        )
        for name, indexes in wanted.items()
    ]
    return ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(0), topics=tuple(topics))


def _layout(topic: Any) -> TopicLayout:
    partitions = [
        PartitionLayout(
            int(part.partition_index),
            int(part.leader_id),
            int(part.leader_epoch),
            tuple(map(int, part.replica_nodes)),
            tuple(map(int, part.isr_nodes)),
        )
        for part in topic.partitions
    ]
    return TopicLayout(str(topic.name), str(topic.topic_id), bool(topic.is_internal), sorted(partitions))
