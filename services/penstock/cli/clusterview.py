"""A cluster in one picture: what each broker says about itself at /v1/cluster, put together.

For `penstock status` and `penstock cluster`. Lags of backups are known to leaders only and elections to those
who won them, so everybody who is alive is asked; who doesn't answer is named.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, Final
from urllib.request import urlopen

from penstock.cli.terminal import print_table

_TIMEOUT: Final = 2.0
_ELECTIONS: Final = 10
_ROWS: Final = 20


def ask(address: str) -> Any:
    """/v1/cluster of one broker; None if it doesn't answer, or is not of a cluster."""
    base = address if "://" in address else f"http://{address}"
    try:
        with urlopen(f"{base}/v1/cluster", timeout=_TIMEOUT) as response:
            return json.load(response)
    except (OSError, ValueError):
        return None


def together(answers: Iterable[Any]) -> dict[str, Any]:
    """Lags by (topic, partition), and everybody's elections, the newest first."""
    lags: dict[str, dict[str, int]] = {}
    elections: list[Any] = []
    for answer in answers:
        for each in answer["partitions"]:
            if each["backups"] is not None and each["leader"] == answer["told_by"]:
                name = f"{each['topic']}-{each['partition']}"
                lags[name] = {str(backup["broker_id"]): backup["lag"] for backup in each["backups"]}
        elections += answer["elections"]
    return {"lags": lags, "elections": sorted(elections, key=lambda e: -e["at"])}


def whole(http: str) -> Any:
    """The cluster as all its brokers see it, found through one of them; None for a single node."""
    first = ask(http)
    if first is None:
        return None
    others = [b for b in first["brokers"] if b["alive"] and b["broker_id"] != first["told_by"]]
    answers = [ask(broker["http"]) for broker in others]
    silent = [broker["broker_id"] for broker, answer in zip(others, answers, strict=True) if answer is None]
    found = together([first, *(answer for answer in answers if answer is not None)])
    for each in first["partitions"]:
        each["lags"] = found["lags"].get(f"{each['topic']}-{each['partition']}", {})
        del each["backups"], each["own"]
    return {**first, "elections": found["elections"], "silent": silent}


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


def lag_text(lags: dict[str, int]) -> str:
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
