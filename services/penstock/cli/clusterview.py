"""A cluster in one picture, for `penstock status` and `penstock cluster`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.request import urlopen

from penstock.cli.terminal import print_table

_TIMEOUT: Final = 5.0
"""Longer than a broker waits for the others."""
_ELECTIONS: Final = 10
_ROWS: Final = 20


def whole(base: str) -> Any:
    """The cluster as all its brokers see it, through one of them; None for a single node."""
    try:
        with urlopen(f"{base}/v1/cluster/whole", timeout=_TIMEOUT) as response:
            return json.load(response)
    except (OSError, ValueError):
        return None


def show(cluster: Any) -> None:
    """Brokers, what is not as it should be, and the last elections."""
    rows: list[Any] = [
        (
            b["broker_id"],
            "drained" if b["alive"] and b.get("drained") else "alive" if b["alive"] else "GONE",
            b["kafka"],
            b["rack"] or "",
            b["leads"],
            b["replicas"],
        )
        for b in cluster["brokers"]
    ]
    print_table(
        "brokers" + ("" if cluster["etcd_reachable"] else " (etcd can't be reached)"),
        ("id", "state", "kafka", "rack", "leads", "replicas"),
        rows,
    )
    behind = [p for p in cluster["partitions"] if is_behind(p) or lacks(p) or any(p["lags"].values())]
    rows = [
        (
            f"{p['topic']}-{p['partition']}",
            p["leader"],
            p["epoch"],
            p["replicas"],
            p.get("wanted", ""),
            p["in_sync"],
            lag_text(p["lags"]),
        )
        for p in behind
    ]
    title = (
        f"{len(cluster['partitions'])} partitions, {sum(map(is_behind, behind))} with replicas out of sync, "
        f"{sum(map(lacks, behind))} with fewer than wanted"
    )
    print_table(title, ("partition", "leader", "epoch", "replicas", "wanted", "in sync", "lag"), rows[:_ROWS])
    show_elections(cluster["elections"])


def is_behind(partition: Any) -> bool:
    return partition["leader"] < 0 or len(partition["in_sync"]) < len(partition["replicas"])


def lacks(partition: Any) -> bool:
    """A broker was drained, or reassigned away from, and nobody took its place. Old brokers don't tell."""
    return len(partition["replicas"]) < int(partition.get("wanted", 0))


def lag_text(lags: Mapping[int, int] | Mapping[str, int]) -> str:
    return ", ".join(f"{broker}: {lag:,}" for broker, lag in lags.items())


def show_elections(elections: list[Any]) -> None:
    rows = [
        (
            time.strftime("%H:%M:%S", time.localtime(e["at"])),
            e["partition"],
            e["leader"],
            e["epoch"],
            e["reason"],
        )
        for e in elections[:_ELECTIONS]
    ]
    if rows:
        print_table("last elections", ("at", "partition", "leader", "epoch", "reason"), rows)
