"""The cluster as all its brokers see it: what each says of itself at /v1/cluster, put together.

Lags of backups are known to leaders only and elections to those who won them, so everybody who is alive is
asked; who doesn't answer is named. For /v1/cluster/whole of any broker, and for `penstock cluster`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final
from urllib.request import urlopen

from penstock.broker.http.models import (
    ClusterPartition,
    ClusterStatus,
    ClusterView,
    ElectionStatus,
    WholeCluster,
)

_TIMEOUT: Final = 2.0

Lags = dict[int, int]
"""Of backups, by broker."""


def ask(address: str) -> ClusterStatus | None:
    """None if it doesn't answer, or not as one of a cluster. Blocks: for a thread."""
    try:
        with urlopen(f"http://{address}/v1/cluster", timeout=_TIMEOUT) as response:
            return ClusterStatus.model_validate_json(response.read())
    except (OSError, ValueError):
        return None


async def ask_all(addresses: Iterable[str]) -> list[ClusterStatus | None]:
    return await asyncio.gather(*(asyncio.to_thread(ask, address) for address in addresses))


def lags(answers: Iterable[ClusterStatus]) -> dict[tuple[str, int], Lags]:
    return {
        (each.topic, each.partition): {backup.broker_id: backup.lag for backup in each.backups}
        for answer in answers
        for each in answer.partitions
        if each.backups is not None and each.leader == answer.told_by
    }


def elections(answers: Iterable[ClusterStatus]) -> list[ElectionStatus]:
    """The newest first."""
    return sorted((each for answer in answers for each in answer.elections), key=lambda each: -each.at)


async def whole_cluster(mine: ClusterStatus) -> WholeCluster:
    others = [broker for broker in mine.brokers if broker.alive and broker.broker_id != mine.told_by]
    asked = await ask_all(broker.http for broker in others)
    answers = [mine, *(answer for answer in asked if answer is not None)]
    found = lags(answers)
    return WholeCluster(
        **mine.model_dump(include=set(ClusterView.model_fields)),
        partitions=[
            ClusterPartition(
                **each.model_dump(exclude={"backups", "own"}),
                lags=found.get((each.topic, each.partition), {}),
            )
            for each in mine.partitions
        ],
        elections=elections(answers),
        silent=[broker.broker_id for broker, answer in zip(others, asked, strict=True) if answer is None],
    )
