"""What must not be sent: Kafka's error code or a closed connection for that client, and nobody else notices.

After every test another client, connected since before the test, still produces and fetches on the same
connection, no connection is left behind, and the broker's log holds no traceback.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from uuid import UUID

import psutil
import pytest

from harness import BrokerProcess, background, eventually
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from rawclient import (
    ConnectionClosed,
    RawClient,
    frame,
    produce_tree,
    read_response,
    record_batch,
    request_bytes,
)
from samples import EVERY_VERSION, sample

TOPIC = "bad-input"
METADATA = request_bytes(3, 9, {"topics": None})


class Bystander:
    """Another client of the same broker, with its own topic."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._client = RawClient(broker.address)
        self._produced = 0
        for name in ("bystander", TOPIC):
            made = self._client.ask(
                19,
                5,
                timeout=1000,
                topics=[{"name": name, "num_partitions": 1, "replication_factor": 1}],
            )
            assert made.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists)

    def works(self) -> float:
        """Produce a record and read it back; the seconds it took."""
        started = time.monotonic()
        value = b"record %d" % self._produced
        produced = self._client.ask(0, 9, **produce_tree("bystander", record_batch([value])))
        (partition,) = produced.responses[0].partition_responses
        assert (partition.error_code, partition.base_offset) == (ErrorCode.none, self._produced)
        tree = sample(ApiKey.FETCH, "bystander", UUID(int=0))
        tree["topics"][0]["partitions"][0]["fetch_offset"] = self._produced
        fetched = self._client.ask(1, 11, **tree)
        assert value in fetched.responses[0].partitions[0].records
        self._produced += 1
        return time.monotonic() - started

    def close(self) -> None:
        self._client.close()


def open_connections(broker: BrokerProcess) -> int:
    assert broker.process is not None
    connections = psutil.Process(broker.process.pid).net_connections("tcp")
    return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == broker.port for c in connections)


def resident(broker: BrokerProcess) -> int:
    """Bytes of the broker's own memory, without what it shares."""
    assert broker.process is not None
    usage = psutil.Process(broker.process.pid).memory_info()
    return int(usage.rss - usage.shared)


@contextlib.contextmanager
def connections(broker: BrokerProcess, count: int) -> Iterator[list[RawClient]]:
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(RawClient(broker.address)) for _ in range(count)]


@pytest.fixture(scope="module")
def module_bystander(shared_broker: BrokerProcess) -> Iterator[Bystander]:
    bystander = Bystander(shared_broker)
    yield bystander
    bystander.close()


@pytest.fixture(autouse=True)
def bystander(shared_broker: BrokerProcess, module_bystander: Bystander) -> Iterator[Bystander]:
    yield module_bystander
    module_bystander.works()
    eventually(lambda: open_connections(shared_broker) == 1)
    assert "Traceback" not in shared_broker.log_text()


@pytest.fixture
def client(shared_broker: BrokerProcess, bystander: Bystander) -> Iterator[RawClient]:
    with RawClient(shared_broker.address) as connected:
        yield connected


# Frames


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # TLS
        b"SSH-2.0-OpenSSH_9.2\r\n",
        struct.pack(">i", 0x7FFFFFFF),
        struct.pack(">i", -1),
        struct.pack(">i", -(1 << 31)),
        struct.pack(">i", 0),
        frame(b"\0"),
        frame(bytes(7)),
        frame(bytes(8)),
        frame(bytes(50)),
        frame(b"\xff" * 50),
    ],
    ids=["http", "tls", "ssh", "2GB", "-1", "-2GB", "0", "1 byte", "7", "8 zeros", "50 zeros", "50 ff"],
)
def test_what_is_no_kafka_frame_closes_the_connection(client: RawClient, data: bytes) -> None:
    client.send(data)
    assert client.is_closed_by_broker()


def test_promises_of_much_to_come_cost_no_memory(shared_broker: BrokerProcess, bystander: Bystander) -> None:
    before = resident(shared_broker)
    with connections(shared_broker, 300) as clients:
        for client in clients:
            client.send(struct.pack(">i", 100 << 20) + bytes(10))  # the largest that is taken, then nothing
        bystander.works()
        assert resident(shared_broker) - before < 30 << 20
        with RawClient(shared_broker.address) as honest:
            assert produced(honest, record_batch([bytes(500_000)])) is ErrorCode.none


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", value))
def test_a_request_cut_short_anywhere_closes_the_connection(
    shared_broker: BrokerProcess, key: ApiKey, version: int
) -> None:
    """The frame's length is right, the message inside ends too early."""
    body = request_bytes(key, version, sample(key, TOPIC, UUID(int=1)))[4:]
    for end in sorted({10, 12, len(body) // 2, len(body) - 1}):
        if end >= len(body) or (key is ApiKey.API_VERSIONS and version < 3):
            continue  # nothing is missing
        with RawClient(shared_broker.address) as client:
            client.send(frame(body[:end]))
            assert client.is_closed_by_broker()


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION, ids=lambda value: getattr(value, "name", value))
def test_a_count_of_billions_closes_the_connection(
    shared_broker: BrokerProcess, key: ApiKey, version: int
) -> None:
    """An array's length is no reason to make room for it."""
    body = request_bytes(key, version, sample(key, TOPIC, UUID(int=1)))[4:]
    for lie in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff"):
        with RawClient(shared_broker.address) as client:
            for position in range(14, min(len(body), 40)):
                with contextlib.suppress(ConnectionError):
                    client.send(frame(body[:position] + lie + body[position + len(lie) :]))


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_lengths_that_lie_inside_a_produce_request(
    shared_broker: BrokerProcess, bystander: Bystander, version: int
) -> None:
    """Every byte of the request's frame in turn made large: refused, answered or closed, never worse."""
    body = request_bytes(0, version, sample(ApiKey.PRODUCE, TOPIC, UUID(int=1)))[4:]
    for position in range(8, len(body) - 100):
        lie = bytearray(body)
        lie[position] = 0x7F if lie[position] != 0x7F else 0xFF
        with RawClient(shared_broker.address) as client:
            client.send(frame(bytes(lie)) + METADATA)
            try:
                client.receive()  # an answer to it, or to the next request if it asked for none
            except ConnectionClosed:
                continue
    bystander.works()


def test_a_client_that_hangs_up_in_the_middle_of_a_frame(
    shared_broker: BrokerProcess, bystander: Bystander
) -> None:
    request = request_bytes(0, 9, produce_tree(TOPIC, record_batch([bytes(200_000)])))
    for end in (1, 3, 4, 11, 60, 40_000, len(request) - 1):
        with RawClient(shared_broker.address) as client:
            client.send(request[:end])
        bystander.works()


def test_a_client_that_resets_its_connection(shared_broker: BrokerProcess, bystander: Bystander) -> None:
    for _ in range(20):
        client = RawClient(shared_broker.address)
        client.send(METADATA * 5)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    bystander.works()


def test_a_slow_frame_is_served_and_disturbs_nobody(client: RawClient, bystander: Bystander) -> None:
    request = request_bytes(0, 9, produce_tree(TOPIC, record_batch([b"slowly"])))
    slowest = 0.0
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in request:
        client.send(bytes([byte]))
        slowest = max(slowest, bystander.works())
    _, answer = read_response(0, 9, client.receive())
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
    assert slowest < 1.0


def test_many_requests_in_one_packet_are_answered_in_order(client: RawClient) -> None:
    client.send(b"".join(request_bytes(18, 0, {}, correlation=n) for n in range(500)))
    assert [read_response(18, 0, client.receive())[0] for _ in range(500)] == list(range(500))


# APIs and versions


@pytest.mark.parametrize("key", [4, 17, 24, 36, 68, 75, 999, -1, 0x7FFF])
def test_an_unknown_api_closes_the_connection(client: RawClient, key: int) -> None:
    client.send(frame(struct.pack(">hhih", key, 0, 1, -1)))
    assert client.is_closed_by_broker()


@pytest.mark.parametrize(("key", "version"), [(0, 2), (0, 14), (1, 3), (1, 18), (3, 99), (3, -1), (20001, 1)])
def test_an_unknown_version_closes_the_connection(client: RawClient, key: int, version: int) -> None:
    client.send(frame(struct.pack(">hhih", key, version, 1, -1) + bytes(20)))
    assert client.is_closed_by_broker()


@pytest.mark.parametrize("version", [5, 99, 0x7FFF, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(client: RawClient, version: int) -> None:
    client.send(frame(struct.pack(">hhih", 18, version, 42, -1) + bytes(20)))
    correlation, answer = read_response(18, 0, client.receive())
    assert correlation == 42
    assert answer.error_code is ErrorCode.unsupported_version
    assert {entry.api_key for entry in answer.api_keys} >= {0, 1, 18}
    client.ask(18, 3, client_software_name="raw", client_software_version="1")  # and it goes on


@pytest.mark.parametrize(
    "wanted",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"topics": 7}',
        b'{"topics": [7]}',
        b'{"topics": [{"topic": "t", "partitions": 7}]}',
        b'{"topics": [{"topic": "t", "partitions": ["x"]}]}',
        b'{"topics": [{"topic": "t", "partitions": [1e999]}]}',
        b"[" * 100_000,
    ],
    ids=range(12),
)
def test_a_subscription_that_makes_no_sense_closes_the_connection(client: RawClient, wanted: bytes) -> None:
    client.send(frame(struct.pack(">hhih", 20001, 0, 1, -1) + struct.pack(">i", len(wanted)) + wanted))
    assert client.is_closed_by_broker()


# Record batches


def produced(client: RawClient, records: bytes | None, **where: int) -> ErrorCode:
    answer = client.ask(0, 9, **produce_tree(TOPIC, records, **where))
    code: ErrorCode = answer.responses[0].partition_responses[0].error_code
    return code


def end_offset(client: RawClient) -> int:
    tree = sample(ApiKey.LIST_OFFSETS, TOPIC, UUID(int=0))
    offset: int = client.ask(2, 4, **tree).topics[0].partitions[0].offset
    return offset


MAGIC_0 = struct.pack(">qiIbb", 0, 14, 0, 0, 0) + struct.pack(">ii", -1, -1)
MAGIC_1 = struct.pack(">qiIbbq", 0, 22, 0, 1, 0, 1234) + struct.pack(">ii", -1, -1)
GOOD = record_batch([b"a", b"b", b"c"])


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (record_batch([b"x"], crc=1), ErrorCode.corrupt_message),
        (GOOD[:-1] + b"!", ErrorCode.corrupt_message),
        (GOOD[:-1], ErrorCode.corrupt_message),
        (GOOD[:30], ErrorCode.corrupt_message),
        (record_batch([b"x"], length=10), ErrorCode.corrupt_message),
        (record_batch([b"x"], length=-12), ErrorCode.corrupt_message),
        (record_batch([b"x"], length=0x7FFFFFFF), ErrorCode.corrupt_message),
        (MAGIC_0, ErrorCode.unsupported_for_message_format),
        (MAGIC_1, ErrorCode.unsupported_for_message_format),
        (MAGIC_1 + bytes(100), ErrorCode.unsupported_for_message_format),
        (record_batch([b"x"], magic=3), ErrorCode.invalid_record),
        (record_batch([b"x"], magic=-1), ErrorCode.invalid_record),
        (record_batch([b"x"], count=2), ErrorCode.invalid_record),
        (record_batch([b"x"], last_offset_delta=5), ErrorCode.invalid_record),
        (record_batch([b"x", b"y"], last_offset_delta=-1), ErrorCode.invalid_record),
        (record_batch([b"x"], count=0, last_offset_delta=-1), ErrorCode.invalid_record),
        (record_batch([], count=0), ErrorCode.invalid_record),
        (record_batch([b"x"], attributes=0x20), ErrorCode.invalid_record),
        (GOOD + GOOD, ErrorCode.invalid_record),
        (record_batch([bytes(2 << 20)]), ErrorCode.message_too_large),
        (b"", ErrorCode.invalid_record),
        (None, ErrorCode.invalid_record),
    ],
    ids=[
        *("crc", "a changed byte", "cut short", "cut in its header", "length too small", "negative length"),
        *("2 GB length", "magic 0", "magic 1", "magic 1 and more", "magic 3", "magic -1", "count too large"),
        *("delta too large", "delta too small", "count zero", "no records", "control batch", "two batches"),
        *("too large", "empty", "null"),
    ],
)
def test_a_bad_batch_is_refused_and_leaves_no_trace_in_the_log(
    client: RawClient, records: bytes | None, code: ErrorCode
) -> None:
    before = end_offset(client)
    assert produced(client, records) is code
    assert end_offset(client) == before
    assert produced(client, GOOD) is ErrorCode.none
    assert end_offset(client) == before + 3


def test_a_bad_batch_does_not_hold_up_the_good_ones_beside_it(client: RawClient) -> None:
    before = end_offset(client)
    tree = produce_tree(TOPIC, GOOD)
    bad = {"name": TOPIC, "partition_data": [{"index": 0, "records": record_batch([b"x"], crc=1)}]}
    tree["topic_data"] = [bad, *tree["topic_data"]]
    first, second = client.ask(0, 9, **tree).responses
    assert first.partition_responses[0].error_code is ErrorCode.corrupt_message
    assert second.partition_responses[0].error_code is ErrorCode.none
    assert end_offset(client) == before + 3


@pytest.mark.parametrize("partition", [-1, 1, 0x7FFFFFFF, -(1 << 31)])
def test_a_partition_that_is_not_there(client: RawClient, partition: int) -> None:
    assert produced(client, GOOD, partition=partition) is ErrorCode.unknown_topic_or_partition
    fetch = sample(ApiKey.FETCH, TOPIC, UUID(int=0))
    fetch["topics"][0]["partitions"][0]["partition"] = partition
    (answer,) = client.ask(1, 11, **fetch).responses[0].partitions
    assert answer.error_code is ErrorCode.unknown_topic_or_partition
    wanted = sample(ApiKey.LIST_OFFSETS, TOPIC, UUID(int=0))
    wanted["topics"][0]["partitions"][0]["partition_index"] = partition
    (answer,) = client.ask(2, 4, **wanted).topics[0].partitions
    assert answer.error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("name", ["no-such-topic", "", "a/b", "../../etc/passwd", "x" * 3000, "\0"])
def test_a_topic_that_is_not_there(client: RawClient, name: str) -> None:
    answer = client.ask(0, 9, **produce_tree(name, GOOD)).responses[0]
    assert (answer.name, answer.partition_responses[0].error_code) == (
        name,
        ErrorCode.unknown_topic_or_partition,
    )


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc/passwd", "x" * 250, "ä", "a b", "a\nb"])
def test_an_illegal_topic_name_is_never_created(client: RawClient, name: str) -> None:
    (described,) = client.ask(3, 9, topics=[{"name": name}], allow_auto_topic_creation=True).topics
    assert described.error_code is ErrorCode.invalid_topic_exception
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
    (made,) = client.ask(19, 5, topics=topics, timeout=1000).topics
    assert made.error_code is ErrorCode.invalid_topic_exception


@pytest.mark.parametrize("acks", [7, 2, -2, 0x7FFF])
def test_acks_that_mean_nothing(client: RawClient, acks: int) -> None:
    before = end_offset(client)
    assert produced(client, GOOD, acks=acks) is ErrorCode.invalid_required_acks
    assert end_offset(client) == before


def test_bad_batches_without_acks_are_dropped_and_the_connection_goes_on(
    client: RawClient,
) -> None:
    before = end_offset(client)
    for records in (record_batch([b"x"], crc=1), GOOD, None):
        client.send(request_bytes(0, 9, produce_tree(TOPIC, records, acks=0)))
    assert end_offset(client) == before + 3


def test_sequences_that_do_not_fit_are_refused_and_repeats_are_answered_alike(client: RawClient) -> None:
    producer = client.ask(22, 4, transactional_id=None, transaction_timeout=1000).producer_id

    def send(sequence: int, epoch: int = 0) -> tuple[ErrorCode, int]:
        batch = record_batch([b"x", b"y"], producer=(producer, epoch, sequence))
        (answer,) = client.ask(0, 9, **produce_tree(TOPIC, batch)).responses[0].partition_responses
        return answer.error_code, answer.base_offset

    first = send(0)
    assert first[0] is ErrorCode.none
    assert send(2) == (ErrorCode.none, first[1] + 2)
    assert send(0) == first
    assert send(6)[0] is ErrorCode.out_of_order_sequence_number
    assert send(1)[0] is ErrorCode.out_of_order_sequence_number
    assert send(0, epoch=1)[0] is ErrorCode.none
    assert send(4)[0] is ErrorCode.invalid_producer_epoch


# Fetches


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 1 << 40, (1 << 63) - 1])
def test_an_offset_out_of_range(client: RawClient, offset: int) -> None:
    tree = sample(ApiKey.FETCH, TOPIC, UUID(int=0))
    tree["topics"][0]["partitions"][0]["fetch_offset"] = offset
    (answer,) = client.ask(1, 11, **tree).responses[0].partitions
    assert answer.error_code is ErrorCode.offset_out_of_range


@pytest.mark.parametrize("size", [-1, 0, 1, 0x7FFFFFFF])
def test_strange_size_limits_still_get_one_batch(client: RawClient, size: int) -> None:
    assert produced(client, GOOD) is ErrorCode.none
    tree = sample(ApiKey.FETCH, TOPIC, UUID(int=0)) | {"max_bytes": size, "min_bytes": size, "max_wait": -1}
    tree["topics"][0]["partitions"][0] |= {
        "partition_max_bytes": size,
        "fetch_offset": end_offset(client) - 3,
    }
    (answer,) = client.ask(1, 11, **tree).responses[0].partitions
    assert answer.error_code is ErrorCode.none
    assert answer.records[16:] == GOOD[16:]


# Clients that do not do their part


def test_a_client_that_never_reads_is_held_back_alone(
    shared_broker: BrokerProcess, bystander: Bystander
) -> None:
    filler = record_batch([bytes(900_000)])
    with RawClient(shared_broker.address) as feeder:
        for _ in range(8):
            assert produced(feeder, filler) is ErrorCode.none
        end = end_offset(feeder)
    tree = sample(ApiKey.FETCH, TOPIC, UUID(int=0)) | {"max_bytes": 64 << 20}
    tree["topics"][0]["partitions"][0] |= {"partition_max_bytes": 64 << 20, "fetch_offset": end - 8}
    request = request_bytes(1, 11, tree)
    before = resident(shared_broker)
    with connections(shared_broker, 5) as greedy:
        for client in greedy:
            client.socket.setblocking(False)
        for round in range(200):  # 7 MB each time, if anybody read them
            for client in greedy:
                with contextlib.suppress(BlockingIOError):
                    client.socket.send(request)
            if round % 20 == 0:
                assert bystander.works() < 1.0
        assert resident(shared_broker) - before < 64 << 20


def test_a_client_that_reads_late_gets_all_its_answers(client: RawClient) -> None:
    count = 2000
    request = METADATA
    sender = threading.Thread(target=lambda: client.send(request * count))
    sender.start()
    answers = [client.receive() for _ in range(count)]
    sender.join(10)
    assert len(answers) == count


def test_a_thousand_connections_come_and_go(shared_broker: BrokerProcess, bystander: Bystander) -> None:
    before = resident(shared_broker)
    with connections(shared_broker, 1000) as clients:
        assert bystander.works() < 1.0
        for client in clients[::50]:
            client.ask(18, 0)
        assert resident(shared_broker) - before < 100 << 20


def test_bystanders_go_on_while_garbage_pours_in(shared_broker: BrokerProcess, bystander: Bystander) -> None:
    stop = threading.Event()

    def pour() -> None:
        while not stop.is_set():
            with RawClient(shared_broker.address) as client:
                client.send(b"\xff" * 1000)

    with background(pour):
        times = [bystander.works() for _ in range(100)]
        stop.set()
    assert max(times) < 1.0
