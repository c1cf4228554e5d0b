"""Frames that were valid once: mutated by the thousand, thrown at a real broker.

FUZZ_FRAMES says how many (`make fuzz` a million), FUZZ_SEED which ones. The broker must live, answer
another client all the while, keep its memory, and log no traceback: an exception that nobody expected is a
bug even when its connection is closed properly.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from harness import BrokerProcess, eventually
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from rawclient import RawClient, produce_tree, record_batch, request_bytes
from samples import EVERY_VERSION, sample

FRAMES = int(os.environ.get("FUZZ_FRAMES", "3000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
BURSTS = [1, 1, 2, 4, 10]
"""Frames per connection: few, because the first bad one ends it; some, because state comes from many."""
CHECK_EVERY = 500
INTERESTING = [0, 1, -1, -2, 0x7F, 0xFF, 0x7FFF, 0x7FFFFFFF, -0x80000000, 0x01000000]

Mutation = Callable[[random.Random, bytearray], None]


def flip_bits(dice: random.Random, body: bytearray) -> None:
    for _ in range(dice.randint(1, 8)):
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)


def flip_bits_after_the_header(dice: random.Random, body: bytearray) -> None:
    for _ in range(dice.randint(1, 3)):
        body[dice.randrange(min(13, len(body) - 1), len(body))] ^= 1 << dice.randrange(8)


def cut_short(dice: random.Random, body: bytearray) -> None:
    del body[dice.randrange(len(body)) :]


def cut_out(dice: random.Random, body: bytearray) -> None:
    start = dice.randrange(len(body))
    del body[start : start + dice.randint(1, 16)]


def put_in(dice: random.Random, body: bytearray) -> None:
    at = dice.randrange(len(body))
    body[at:at] = dice.randbytes(dice.randint(1, 16))


def repeat_a_part(dice: random.Random, body: bytearray) -> None:
    start = dice.randrange(len(body))
    end = min(len(body), start + dice.randint(1, 60))
    body[end:end] = body[start:end] * dice.randint(1, 5)


def plant_a_number(dice: random.Random, body: bytearray) -> None:
    number = dice.choice(INTERESTING) & 0xFFFFFFFF
    size = dice.choice([1, 2, 4])
    at = dice.randrange(len(body))
    body[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size, "big")


def change_the_version(dice: random.Random, body: bytearray) -> None:
    struct.pack_into(">h", body, 2, dice.randint(-1, 20))


def change_the_api(dice: random.Random, body: bytearray) -> None:
    struct.pack_into(">h", body, 0, dice.choice([*ApiKey, dice.randint(-5, 100)]))


def keep(dice: random.Random, body: bytearray) -> None:
    """Valid frames too: state that the others then stumble over."""


MUTATIONS: list[Mutation] = [
    flip_bits,
    flip_bits_after_the_header,
    flip_bits_after_the_header,
    cut_short,
    cut_out,
    put_in,
    repeat_a_part,
    plant_a_number,
    plant_a_number,
    change_the_version,
    change_the_api,
    keep,
]


def valid_bodies(topic: str, topic_id: UUID) -> list[bytes]:
    """One request of every API and version, without its length."""
    bodies = []
    for key, version in EVERY_VERSION:
        tree = sample(key, topic, topic_id, "fuzz-group")
        if key is ApiKey.CREATE_TOPICS:
            tree["topics"][0]["replication_factor"] = 3  # or thousands of topics would come of it
        bodies.append(request_bytes(key, version, tree)[4:])
    wanted = json.dumps({"session": "s", "topics": [{"topic": topic, "partitions": [0]}]}).encode()
    head = struct.pack(">hhih", ApiKey.SUBSCRIBE, 0, 1, -1)
    bodies.append(head + struct.pack(">i", len(wanted)) + wanted)
    return bodies


def mutated(dice: random.Random, bodies: list[bytes]) -> bytes:
    body = bytearray(dice.choice(bodies))
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        if len(body) >= 8:
            dice.choice(MUTATIONS)(dice, body)
    length = len(body)
    if dice.random() < 0.03:
        length = dice.choice([length + dice.randint(-8, 8), dice.choice(INTERESTING)])
    return struct.pack(">i", length) + body


def throw(broker: BrokerProcess, frames: list[bytes], *, read: bool) -> None:
    """Send a burst, take whatever comes back until the broker hangs up, or don't even look."""
    connection = socket.create_connection(("127.0.0.1", broker.port), 10)
    with connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"".join(frames))
        if read:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass


def health_check(client: RawClient, value: bytes) -> None:
    produced = client.ask(0, 9, **produce_tree("health", record_batch([value])))
    (partition,) = produced.responses[0].partition_responses
    assert partition.error_code is ErrorCode.none
    tree = sample(ApiKey.FETCH, "health", UUID(int=0))
    tree["topics"][0]["partitions"][0]["fetch_offset"] = partition.base_offset
    (fetched,) = client.ask(1, 11, **tree).responses[0].partitions
    assert value in fetched.records


@pytest.mark.timeout(max(300, FRAMES // 100))
def test_mutated_frames_harm_nobody(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    # Every mutated name in a Metadata request would be a new topic.
    quiet = {"PENSTOCK_AUTO_CREATE_TOPICS": "false"}
    with BrokerProcess(tmp_path / "broker", environment=quiet) as broker:
        broker.start()
        assert broker.process is not None
        process = psutil.Process(broker.process.pid)
        with RawClient(broker.address) as bystander:
            topics = [
                {"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("fuzz", "health")
            ]
            fuzzed, _ = bystander.ask(19, 7, topics=topics, timeout=1000).topics
            bodies = valid_bodies("fuzz", fuzzed.topic_id)
            sent = checks = checked = 0
            while sent < FRAMES:
                frames = [mutated(dice, bodies) for _ in range(dice.choice(BURSTS))]
                throw(broker, frames, read=dice.random() < 0.8)
                sent += len(frames)
                if sent >= min(FRAMES, checks * CHECK_EVERY):
                    checks += 1
                    health_check(bystander, b"frame %d" % sent)
                    with broker.log_path.open("rb") as log:
                        log.seek(checked)
                        new = log.read()
                    checked += len(new)
                    _, found, trace = new.partition(b"Traceback")
                    assert not found, f"FUZZ_SEED={SEED}, up to frame {sent}:\n{trace.decode()[:3000]}"
            memory = process.memory_info()
            assert memory.rss - memory.shared < 300 << 20
            eventually(lambda: len(process.net_connections("tcp")) <= 3)
        assert broker.stop() == 0
