"""`penstock produce`: lines from standard input become records."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from penstock.cli.options import BROKER, Acks, AsJson, BrokerAddress, Codec
from penstock.cli.terminal import fail, print_json, run

_READ = 1 << 16


def produce(
    topic: Annotated[str, typer.Argument(help="Where to.")],
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", metavar="TEXT", help="What is before it is the record's key."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="All to this one, instead of by key.")
    ] = None,
    compression: Annotated[Codec, typer.Option(help="Of the batches.")] = Codec.NONE,
    acks: Annotated[Acks, typer.Option(help="Whose acknowledgement is waited for.")] = Acks.ALL,
    as_json: AsJson = False,
    broker: BrokerAddress = BROKER,
) -> None:
    """Send each line of standard input as a record, then say how many were acknowledged.

    Example: printf 'ann:1\\nbob:2\\n' | penstock produce clicks --key-separator :
    """
    acknowledged, failures = run(_produce(broker, topic, key_separator, partition, compression, acks))
    if as_json:
        print_json({"topic": topic, "acknowledged": acknowledged, "failed": len(failures)})
    else:
        typer.echo(f"{acknowledged:,} records to {topic}", err=True)
    if failures:
        fail(f"{len(failures)} records were not acknowledged, the first because: {failures[0]}")


async def _produce(
    broker: str, topic: str, separator: str | None, partition: int | None, codec: Codec, acks: Acks
) -> tuple[int, list[str]]:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    from penstock.cli.kafka import no_broker

    producer = AIOKafkaProducer(
        bootstrap_servers=broker,
        client_id="penstock-produce",
        compression_type=None if codec is Codec.NONE else codec.value,
        acks="all" if acks is Acks.ALL else int(acks.value),
        enable_idempotence=acks is Acks.ALL,
        linger_ms=5,
        max_batch_size=256 * 1024,
    )
    acknowledged, failures = 0, []

    def settle(sent: asyncio.Future[object]) -> None:
        nonlocal acknowledged
        error = sent.exception()
        if error is None:
            acknowledged += 1
        else:
            failures.append(str(error) or type(error).__name__)

    try:
        await producer.start()
    except KafkaError:
        await producer.stop()
        raise no_broker(broker) from None
    try:
        async for line in _lines():
            key, value = _split(line, separator)
            try:
                sent = await producer.send(topic, value, key, partition=partition)
            except (KafkaError, AssertionError) as error:
                # aiokafka asserts that the partition is there.
                missing = isinstance(error, AssertionError)
                fail(f"{topic} has no partition {partition}" if missing else f"{topic}: {error}")
            sent.add_done_callback(settle)
        await producer.flush()
    finally:
        await producer.stop()
    await asyncio.sleep(0)  # the last callbacks
    return acknowledged, failures


def _split(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        fail(f"a line has no {separator!r}: {line[:60].decode(errors='replace')!r}")
    return key, value


async def _lines() -> AsyncIterator[bytes]:
    """Standard input, line by line, as it comes."""
    rest = b""
    descriptor = sys.stdin.fileno()
    while True:
        # On a thread: standard input may be a file, which no event loop can wait for.
        chunk = await asyncio.to_thread(os.read, descriptor, _READ)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest
