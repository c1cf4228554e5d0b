"""Subscribe, Penstock's own API: where the shared memory of a topic's partitions is.

A reader asks once; from then on it needs no request at all. The body is JSON in a Kafka frame, so that
it comes over the same port and connection as everything else:

    request   {"session": text, "topics": [{"topic": name, "partitions": [index, ...] or absent for all}]}
    response  {"error", "brokerId", "host", "shmDir", "incarnation", "layoutVersion", "heartbeatMs",
               "partitions": [{"topic", "topicId", "partition", "leaderEpoch", "logStartOffset",
                               "highWatermark", "denseFrom", "bytes", "directory", "error"}]}

From `denseFrom` on every offset has its record, so that offsets alone answer how many there are.

A reader shares this machine's memory exactly if it finds node.ctl in shmDir with this incarnation; `host` is
only where Spark should look for one that does.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from penstock.broker.context import BrokerContext
from penstock.broker.reply import Reply
from penstock.log.store import HEARTBEAT
from penstock.shm import layout
from penstock.wire.errors import KafkaError, MalformedRequest
from penstock.wire.head import RequestHead, header_length


def subscribe(context: BrokerContext, head: RequestHead, frame: memoryview) -> Reply:
    _, at = header_length(head, frame, flexible=False)
    try:
        length = int.from_bytes(frame[at : at + 4], "big", signed=True)
        body = json.loads(bytes(frame[at + 4 : at + 4 + length]))
        wanted = [(str(entry["topic"]), _numbers(entry.get("partitions"))) for entry in body["topics"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedRequest(f"subscribe: {error}") from None
    answer = json.dumps(_answer(context, wanted)).encode()
    out = struct.pack(">iii", 8 + len(answer), head.correlation_id, len(answer))
    return Reply((out + answer,))


def _numbers(partitions: Any) -> list[int] | None:
    if partitions is not None and not all(type(index) is int for index in partitions):
        raise TypeError("partitions are numbers")
    return None if partitions is None else list(partitions)


def _answer(context: BrokerContext, wanted: list[tuple[str, list[int] | None]]) -> dict[str, Any]:
    store = context.store
    return {
        "error": None,
        "brokerId": context.broker_id,
        "host": context.spark_host or context.address().host,
        "shmDir": str(store.memory_directory),
        "incarnation": store.incarnation,
        "layoutVersion": layout.VERSION,
        "heartbeatMs": int(HEARTBEAT * 1000),
        "partitions": [
            _partition(context, topic, index)
            for topic, indexes in wanted
            for index in _indexes(context, topic, indexes)
        ],
    }


def _indexes(context: BrokerContext, topic: str, indexes: list[int] | None) -> list[int]:
    if indexes is not None:
        return indexes
    served = context.catalog.by_name.get(topic)
    return list(range(len(served.topic.partitions))) if served else [0]


def _partition(context: BrokerContext, topic: str, index: int) -> dict[str, Any]:
    try:
        log = context.catalog.find(topic, index)
    except KafkaError as error:
        return {"topic": topic, "partition": index, "error": error.code.name}
    return {
        "topic": topic,
        "topicId": log.topic_id.hex(),
        "partition": index,
        "leaderEpoch": log.leader_epoch,
        "logStartOffset": log.log_start,
        "highWatermark": log.high_watermark,
        "denseFrom": max(log.dense_from, log.cleaned_to, log.log_start),
        "bytes": log.size,
        "directory": str(log.memory_directory),
        "error": None,
    }
