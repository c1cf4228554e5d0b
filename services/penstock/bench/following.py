"""A native consumer, without Spark: follows the end of some partitions by Fetch and asks them a query.

Run as `python -m penstock.bench.following ADDRESS TOPIC FETCH QUERY PARTITION...`; prints "ready", then a
line every tenth of a second with the wall clock and the records so far. It runs until it is killed.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import defaultdict
from typing import Final

from penstock.bench.native import QUERIES
from penstock.bench.puller import Puller

_EVERY: Final = 0.1


def _ends(address: str, topic: str, partitions: list[int]) -> dict[str, dict[int, int]]:
    """Where each partition ends now, by the address of its leader."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench"})
    cluster = consumer.list_topics(topic, 10)
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for partition in partitions:
        leader = cluster.brokers[cluster.topics[topic].partitions[partition].leader]
        end = consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)[1]
        found[f"{leader.host}:{leader.port}"][partition] = end
    consumer.close()
    return found


def main(address: str, topic: str, fetch: int, query: str, partitions: list[int]) -> None:
    ends = _ends(address, topic, partitions)
    make = QUERIES[query]
    visit = make and make()
    pullers = [
        Puller(leader, topic, offsets, fetch, again=False, visit=visit) for leader, offsets in ends.items()
    ]
    print("ready", flush=True)
    records, told = 0, time.monotonic()
    for puller in itertools.cycle(pullers):
        records += puller.pull().records
        if time.monotonic() - told >= _EVERY:
            told = time.monotonic()
            print(f"{time.time():.3f} {records}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], [int(each) for each in sys.argv[5:]])
