"""Many producers, each with partitions of its own, in one process.

Run as `python -m penstock.bench.spread ADDRESS TOPIC PARTITIONS CONNECTIONS CHUNK SECONDS`; prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop

from penstock.load.run import LoadPlan, run_load


def shares(partitions: int, connections: int) -> list[list[int]]:
    """Partitions dealt out to connections; with more connections than partitions, several share one."""
    if connections >= partitions:
        return [[index % partitions] for index in range(connections)]
    return [list(range(partitions))[at::connections] for at in range(connections)]


async def spread(
    address: str, topic: str, partitions: int, connections: int, chunk: int, seconds: float
) -> dict[str, Any]:
    plans = [
        LoadPlan(topic=topic, leaders={address: share}, chunk=chunk, seconds=seconds)
        for share in shares(partitions, connections)
    ]
    reports = await asyncio.gather(*map(run_load, plans))
    failures = [report.failure for report in reports if report.failure is not None]
    if failures:
        raise SystemExit(failures[0])
    return {
        "connections": len(plans),
        "seconds": max(report.seconds for report in reports),
        "requests": sum(report.requests for report in reports),
        "records": sum(report.records for report in reports),
        "bytes": sum(report.bytes for report in reports),
    }


if __name__ == "__main__":
    host, name, *numbers, length = sys.argv[1:]
    count, clients, size = map(int, numbers)
    print(json.dumps(uvloop.run(spread(host, name, count, clients, size, float(length)))))
