"""From a broker's leading a partition of group offsets to its serving the groups in it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.log.partition import PartitionLog
from penstock.wire.errors import KafkaError
from penstock.wire.records import CorruptRecords

log = logging.getLogger(__name__)

RETRY: Final = 1.0


async def take_over(partition: PartitionLog, groups: GroupCoordinator) -> None:
    """A coordinator knows all that the last one acknowledged before it answers (rule R12).

    Who ends the leadership also unloads the partition, at once. So this must not: by the time it is done, the
    broker may lead again, and what it would unload be the next leadership's.
    """
    term = partition.term
    while partition.high_watermark < partition.epoch_start:
        moved = asyncio.Event()
        partition.wait(moved.set)
        await moved.wait()
        if partition.term != term:
            return
    while partition.term == term:
        try:
            await groups.load(partition.partition)
        except (CorruptRecords, KafkaError) as error:
            log.error("group offsets: partition %d can't be loaded: %s", partition.partition, error)
        except OSError as error:  # a disk's trouble may pass, and nobody else can serve these groups
            log.error("group offsets: partition %d can't be read now: %s", partition.partition, error)
            await asyncio.sleep(RETRY)
            continue
        return
