"""`penstock load`: the paper's producer, with the figures it plots."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import BROKER, Acks, AsJson, BrokerAddress, Codec
from penstock.cli.terminal import CommandFailed, fail, in_bytes, print_json, run

if TYPE_CHECKING:
    from penstock.load.producer import Tally
    from penstock.load.run import LoadPlan, LoadReport


def load(
    topic: Annotated[str, typer.Option("--topic", "-t", help="Made if it is not there.")] = "load",
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="One chunk each, per request.")
    ] = 8,
    chunk: Annotated[str, typer.Option(help="Size of a chunk, one record batch.")] = "16KiB",
    record: Annotated[int, typer.Option(min=1, help="Bytes of a record's value.")] = 100,
    producers: Annotated[int, typer.Option("--producers", "-n", min=1, help="Connections.")] = 1,
    pipeline: Annotated[int, typer.Option(min=1, help="Requests a producer has on their way at once.")] = 1,
    rate: Annotated[float, typer.Option(min=0, help="Records per second in all; 0: as fast as it goes.")] = 0,
    seconds: Annotated[
        float, typer.Option("--seconds", "-s", min=0, help="How long; 0: until it is stopped.")
    ] = 10,
    size: Annotated[
        str, typer.Option(metavar="SIZE", help="How much in all, if --seconds are enough; 0: no bound.")
    ] = "0",
    compression: Annotated[Codec, typer.Option(help="Of the chunks.")] = Codec.NONE,
    text: Annotated[bool, typer.Option(help="Words by Zipf's law instead of filler.")] = False,
    text_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The words of this file instead.")
    ] = None,
    acks: Annotated[Acks, typer.Option(help="Whose acknowledgement is waited for.")] = Acks.LEADER,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve counts and latencies to Prometheus.")
    ] = None,
    as_json: AsJson = False,
    broker: BrokerAddress = BROKER,
) -> None:
    """Produce synthetic records as the paper's producers do, and say how fast that went.

    Each request carries one chunk for every partition; a producer waits for the answer before the next
    one, unless --pipeline lets it have more on their way. With --seconds 0 it goes on through the death of
    brokers, and says every ten seconds how it goes.

    Example: penstock load --partitions 8 --chunk 16KiB --producers 2 --seconds 30
    """
    from penstock.load.metrics import serve_metrics
    from penstock.load.producer import Tally
    from penstock.load.run import LoadFailed, LoadPlan
    from penstock.settings import parse_size
    from penstock.wire.records import Compression

    try:
        chunk_bytes = parse_size(chunk)
    except ValueError as error:
        fail(f"--chunk: {error}")
    try:
        total = parse_size(size)
    except ValueError as error:
        fail(f"--size: {error}")
    if chunk_bytes < record:
        fail(f"a chunk of {chunk_bytes} bytes can't hold a record of {record}; raise --chunk")
    if total and not seconds:
        fail("--seconds 0 never ends and --size does; give --seconds the longest it may take")
    plan = LoadPlan(
        topic=topic,
        leaders={},
        chunk=chunk_bytes,
        record=record,
        producers=producers,
        pipeline=pipeline,
        rate=rate,
        seconds=seconds,
        size=total,
        compression=Compression[compression.name],
        acks=acks.number,
        text=text or text_file is not None,
        text_file=text_file,
    )
    quiet = as_json or not sys.stderr.isatty()
    tally = Tally()
    try:
        with serve_metrics(metrics, topic, tally):
            if seconds == 0:
                run(_load_for_ever(broker, plan, partitions, tally))
                return
            report = run(_load(broker, plan, partitions, tally, quiet=quiet))
    except LoadFailed as error:
        fail(f"{topic}: {error}")
    except OSError as error:
        fail(f"--metrics {metrics}: {error}")
    if as_json:
        print_json(asdict(report))
    else:
        _print(report)
    if report.failure is not None:
        refused = f" ({report.refused:,} requests in all)" if report.refused else ""
        fail(f"{topic}: {report.failure}{refused}")


async def _load(broker: str, plan: LoadPlan, partitions: int, tally: Tally, *, quiet: bool) -> LoadReport:
    from dataclasses import replace

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from penstock.load.run import run_load

    plan = replace(plan, leaders=await _leaders(broker, plan.topic, partitions))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task(plan.topic, total=plan.seconds)
        last = 0

        def show(elapsed: float, tally: Tally) -> None:
            nonlocal last
            progress.update(task, completed=elapsed, description=f"{tally.records - last:,} records/s")
            last = tally.records

        return await run_load(plan, show, tally)


async def _load_for_ever(broker: str, plan: LoadPlan, partitions: int, tally: Tally) -> None:
    import asyncio
    import signal

    from penstock.cli.logs import set_up_logging
    from penstock.load.run import LoadFailed
    from penstock.load.steady import run_steadily

    async def leaders() -> dict[str, list[int]]:
        try:
            return await _leaders(broker, plan.topic, partitions)
        except CommandFailed as error:
            raise LoadFailed(str(error)) from None

    set_up_logging("info", as_json=os.environ.get("PENSTOCK_LOG_JSON", "").lower() in ("1", "true"))
    producing = asyncio.ensure_future(run_steadily(plan, leaders, tally))
    # As a container's first process it would not get a SIGTERM that nobody asks for.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, producing.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await producing


async def _leaders(broker: str, topic: str, partitions: int) -> dict[str, list[int]]:
    from penstock.cli.kafka import Cluster
    from penstock.cli.topic import create_topic

    async with Cluster(broker) as cluster:
        if topic not in {found.name for found in await cluster.topics()}:
            await create_topic(cluster, topic, partitions, -1, {})
        (layout,) = await cluster.topics([topic])
        if len(layout.partitions) < partitions:
            fail(
                f"topic {topic} has {len(layout.partitions)} partitions; ask for so many, or grow it with "
                f"`penstock topic alter {topic} --partitions {partitions}`"
            )
        leaders: dict[str, list[int]] = defaultdict(list)
        for place in layout.partitions[:partitions]:
            leaders[cluster.address_of(place.leader)].append(place.partition)
        return dict(leaders)


def _print(report: LoadReport) -> None:
    typer.echo(
        f"{report.records:,} records, {in_bytes(report.bytes)} in {report.seconds:.1f} s: "
        f"{report.records_per_second:,.0f} records/s (median {report.median_records_per_second:,.0f}), "
        f"{report.megabytes_per_second:,.1f} MB/s"
    )
    if report.latency_ms_p50 is not None:
        typer.echo(
            f"{report.requests:,} requests, latency p50 {report.latency_ms_p50:.2f} ms, "
            f"p99 {report.latency_ms_p99:.2f} ms, max {report.latency_ms_max:.2f} ms"
        )
    if report.refused:
        typer.echo(f"{report.refused:,} requests found no room; the broker's log says what is full")
