"""Produces records and has Spark read them back by push, from every broker: does this installation work?

Ends with 0 if each record came exactly once, by push alone (`mode=push` fails where memory is not shared).
`helm test` runs it. The topic it makes, it removes.
"""

from __future__ import annotations

import asyncio
import sys
import uuid

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from penstock.spark.job import arguments, source_options, start_session


async def produce(servers: str, topic: str, records: int) -> set[str]:
    """One partition for each broker, so that each one's memory is read; acknowledged by all replicas."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        brokers = len((await admin.describe_cluster())["brokers"])
        await admin.create_topics([NewTopic(topic, brokers, min(brokers, 2))])
    finally:
        await admin.close()
    sent = {f"{topic} {number}" for number in range(records)}
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True) as producer:
        for number, value in enumerate(sorted(sent)):
            await producer.send_and_wait(topic, value.encode(), partition=number % brokers)
    return sent


async def remove(servers: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()


def main() -> None:
    parser = arguments(__doc__ or "", topic=f"push-check-{uuid.uuid4().hex[:8]}")
    parser.add_argument("--records", type=int, default=100, help="how many")
    parser.set_defaults(mode="push")
    args = parser.parse_args()
    sent = asyncio.run(produce(args.servers, args.topic, args.records))
    try:
        # A task waits for the node that has its memory: elsewhere it could only fail.
        spark = start_session("push check", args, **{"spark.locality.wait": "60s"})
        reader = spark.read.format(args.source).options(**source_options(args))
        rows = reader.load().selectExpr("partition", "CAST(value AS STRING) AS value").collect()
    finally:
        asyncio.run(remove(args.servers, args.topic))
    found = [row.value for row in rows]
    partitions = len({row.partition for row in rows})
    if sorted(found) != sorted(sent):
        sys.exit(f"sent {len(sent)} records, read {len(found)}, {len(sent - set(found))} of them missing")
    print(f"{len(found)} records by {args.mode} out of the memory of {partitions} brokers")


if __name__ == "__main__":
    main()
