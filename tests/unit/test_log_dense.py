"""From `dense_from` on every offset has its record: readers count by offsets, so it is never too low."""

from __future__ import annotations

from log_rig import LogRig, everything, put

from penstock.log.partition import PartitionLog


def is_true(log: PartitionLog) -> bool:
    found = [record.offset for record in everything(log) if record.offset >= log.dense_from]
    return found == list(range(log.dense_from, log.high_watermark))


async def test_a_new_log_is_dense_from_its_first_record(rig: LogRig) -> None:
    (log,) = rig.open()
    for _ in range(10):
        put(log, [b"a", b"b", b"c"])
    assert log.dense_from == 0
    assert is_true(log)
    await rig.store.stop()


async def test_offsets_that_were_left_out_are_not_counted(rig: LogRig) -> None:
    (log,) = rig.open()
    put(log, [b"a"])
    log.skip_to(5000)
    put(log, [b"b"])
    assert log.dense_from == 5000
    assert is_true(log)
    await rig.store.stop()


async def test_nothing_is_promised_of_what_an_earlier_process_wrote(rig: LogRig) -> None:
    (log,) = rig.open()
    put(log, [b"a"])
    log.skip_to(100)
    put(log, [b"b"])
    await rig.crash()
    (again,) = rig.open()
    assert again.dense_from == 101
    put(again, [b"c"])
    assert is_true(again)
    await rig.store.stop()


async def test_a_backup_sees_the_gaps_of_its_leader(rig: LogRig) -> None:
    leader, backup = rig.open(partitions=2)
    put(leader, [b"a"])
    leader.skip_to(300)
    put(leader, [b"b", b"c"])
    segment = leader.segments[-1]
    backup.append_run(segment.bytes_between(0, segment.size))
    backup.commit(backup.log_end)
    assert backup.dense_from == leader.dense_from == 300
    assert is_true(backup)
    await rig.store.stop()


async def test_a_gap_that_was_cut_off_is_forgotten(rig: LogRig) -> None:
    (log,) = rig.open()
    log.replicated = True
    put(log, [b"a", b"b"])
    log.skip_to(300)
    rig.store.truncate(log, 2)
    put(log, [b"c"])
    log.commit(log.log_end)
    assert log.dense_from == 2
    assert is_true(log)
    await rig.store.stop()
