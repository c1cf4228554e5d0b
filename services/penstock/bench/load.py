"""The load side of experiments: the paper's producer as a process of its own, the same for every broker."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from penstock.bench.experiment import Figures
from penstock.bench.rig import PENSTOCK, Child
from penstock.bench.servers import Server

_GRACE = 60.0
_FILLING = 60.0
"""A slice of a fill: longer than any should take, and what a broker without room refused is sent again."""


class Load(NamedTuple):
    topic: str
    partitions: int
    chunk: str
    producers: int = 2
    pipeline: int = 1
    rate: float = 0.0
    record: int = 100
    acks: str = "1"
    text: str | None = None
    """Words instead of filler: of a file, or made up if this is empty."""
    size: int = 0
    """Bytes after which it ends before its time, if not 0."""


def start_load(server: Server, load: Load, seconds: float, cpus: frozenset[int] | None = None) -> Child:
    """Producers that run for a while; `penstock load --json` prints their report at its end."""
    words = [] if load.text is None else ["--text-file", load.text] if load.text else ["--text"]
    command = [
        *(*PENSTOCK, "load", "--json", "-b", server.address, "-t", load.topic, "-p", str(load.partitions)),
        *("--chunk", load.chunk, "-n", str(load.producers), "--pipeline", str(load.pipeline)),
        *("--rate", str(load.rate), "-s", str(seconds), "--record", str(load.record), "--acks", load.acks),
        *("--size", str(load.size)),
        *words,
    ]
    return server.rig.spawn("load", command, server=False, cpus=cpus)


def load_report(running: Child, seconds: float) -> Any:
    """Wait for the end of a load; its report."""
    printed = running.finish(seconds + _GRACE)
    return json.loads(printed[printed.index("{") :])


def run_load(server: Server, load: Load, seconds: float, cpus: frozenset[int] | None = None) -> Any:
    """Produce for a while; the report of `penstock load --json`."""
    return load_report(start_load(server, load, seconds, cpus), seconds)


def fill(server: Server, load: Load, size: int) -> int:
    """Produce until `size` bytes were written, a request or two more at most; how many were."""
    written = 0
    while written < size:
        written += run_load(server, load._replace(size=size - written), _FILLING)["bytes"]
    return written


def measured_load(server: Server, load: Load, seconds: float, cpus: frozenset[int] | None = None) -> Figures:
    """Produce for a while and say what it cost the broker."""
    before = [process.cpu_seconds() for process in server.processes]
    report = run_load(server, load, seconds, cpus)
    each = [p.cpu_seconds() - b for p, b in zip(server.processes, before, strict=True)]
    spent = sum(each)
    by_broker = {f"broker_{number}_cpu_seconds": own for number, own in enumerate(each, 1)}
    return {
        "records_per_second": report["records_per_second"],
        "megabytes_per_second": report["megabytes_per_second"],
        "latency_ms_p50": report["latency_ms_p50"],
        "latency_ms_p99": report["latency_ms_p99"],
        "cpu_us_per_request": 1e6 * spent / report["requests"],
        "cpu_us_per_record": 1e6 * spent / report["records"],
        "broker_cpu_seconds": spent,
        **(by_broker if len(each) > 1 else {}),
        "requests": report["requests"],
        "records": report["records"],
        "refused": report["refused"],
    }
