"""The metadata stores keep the same promises: SQLite for one node, etcd for a cluster."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from etcd import EtcdProcess, needs_etcd
from harness import free_port
from penstock.cluster.directory import ClusterDirectory
from penstock.cluster.etcd import EtcdMetadata
from penstock.cluster.membership import BrokerInfo, Registration
from penstock.cluster.metadata import Change, MetadataStore, SqliteMetadata, Unavailable, Versioned
from penstock.cluster.topics import PRODUCER_ID_BLOCK
from proxy import Proxy, everything, nothing


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with EtcdProcess(tmp_path_factory.mktemp("etcd")) as process:
        yield process.start()


@pytest.fixture(params=["sqlite", pytest.param("etcd", marks=needs_etcd)])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    if request.param == "sqlite":
        opened: MetadataStore = SqliteMetadata(tmp_path / "metadata.db")
    else:
        etcd = request.getfixturevalue("etcd")
        opened = EtcdMetadata([etcd.endpoint], f"/{tmp_path.name}")
    yield opened
    await opened.close()


async def test_a_swap_happens_only_at_the_expected_revision(store: MetadataStore) -> None:
    assert await store.swap([Change("/a", {"n": 1}, 0)])
    assert not await store.swap([Change("/a", {"n": 2}, 0)])
    found = await store.get("/a")
    assert found is not None
    assert found.value == {"n": 1}
    assert await store.swap([Change("/a", {"n": 2}, found.revision)])
    assert not await store.swap([Change("/a", {"n": 3}, found.revision)])
    assert await store.get("/b") is None


async def test_a_swap_of_several_keys_is_all_or_nothing(store: MetadataStore) -> None:
    assert await store.swap([Change("/x/1", 1, 0), Change("/x/2", 2, 0)])
    assert not await store.swap([Change("/x/3", 3, 0), Change("/x/2", None, 0)])
    assert [(entry.key, entry.value) for entry in await store.scan("/x/")] == [("/x/1", 1), ("/x/2", 2)]


async def test_two_brokers_never_give_out_the_same_producer_id_r5(store: MetadataStore) -> None:
    async def take(broker: int) -> list[int]:
        directory = ClusterDirectory(store, broker, {})
        return [await directory.next_producer_id() for _ in range(2 * PRODUCER_ID_BLOCK + 1)]

    first, second = await asyncio.gather(take(1), take(2))
    again = await take(1)  # as after a restart
    assert len({*first, *second, *again}) == len(first) + len(second) + len(again)


async def overtaken(store: MetadataStore, monkeypatch: pytest.MonkeyPatch, *, compares: bool) -> list[int]:
    """Ids of two brokers: the second takes its block when the first has looked and not swapped yet."""
    first, second = (ClusterDirectory(store, number, {}) for number in (1, 2))
    swap = store.swap
    theirs: list[int] = []

    async def late(changes: Sequence[Change]) -> bool:
        monkeypatch.undo()
        theirs.append(await second.next_producer_id())
        (change,) = changes
        if not compares:
            found = await store.get(change.key)
            assert found is not None
            return await swap([replace(change, expected=found.revision)])
        assert not await swap(changes)
        return False

    monkeypatch.setattr(store, "swap", late)
    ours = [await first.next_producer_id() for _ in range(3)]
    assert len(theirs) == 1
    return [*ours, *theirs, *[await second.next_producer_id() for _ in range(3)]]


async def test_a_broker_that_lost_the_swap_takes_another_block_of_producer_ids_r5(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await overtaken(store, monkeypatch, compares=True)
    assert len(set(ids)) == len(ids)


async def test_without_comparing_two_brokers_give_out_the_same_producer_ids_r5(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of the test above."""
    ids = await overtaken(store, monkeypatch, compares=False)
    assert len(set(ids)) < len(ids)


async def test_a_watch_tells_everything_there_is_and_then_every_change(store: MetadataStore) -> None:
    await store.swap([Change("/w/1", "one", 0)])
    async with aclosing(store.watch("/w/")) as watch:
        first = await asyncio.wait_for(anext(watch), 5)
        assert first.whole
        assert [(entry.key, entry.value) for entry in first.entries] == [("/w/1", "one")]
        following = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.05)
        await store.swap([Change("/w/2", "two", 0)])
        news = await asyncio.wait_for(following, 5)
        assert not news.whole
        assert [(entry.key, entry.value) for entry in news.entries] == [("/w/2", "two")]
        following = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.05)
        await store.swap([Change("/w/1", None, first.entries[0].revision)])
        news = await asyncio.wait_for(following, 5)
        assert [(entry.key, entry.value) for entry in news.entries] == [("/w/1", None)]


@needs_etcd
async def test_a_watch_goes_on_where_it_was_when_etcd_comes_back(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path / "etcd") as etcd:
        etcd.start()
        store = EtcdMetadata([etcd.endpoint], timeout=0.5)
        async with aclosing(store.watch("/")) as watch:
            assert (await asyncio.wait_for(anext(watch), 5)).whole
            following = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.1)
            etcd.kill()
            with pytest.raises(Unavailable):
                await store.get("/a")
            assert not store.reachable
            etcd.start()
            await store.swap([Change("/a", 1, 0)])
            news = await asyncio.wait_for(following, 10)
            assert [entry.key for entry in news.entries] == ["/a"]
            assert store.reachable
        await store.close()


@needs_etcd
async def test_a_swap_without_an_answer_is_unavailable_not_refused(tmp_path: Path) -> None:
    with EtcdProcess(tmp_path / "etcd") as etcd:
        etcd.start()
        store = EtcdMetadata([etcd.endpoint], timeout=0.3)
        assert await store.swap([Change("/a", 1, 0)])
        etcd.signal(signal.SIGSTOP)
        await asyncio.sleep(0.1)  # its threads don't all stop at once
        with pytest.raises(Unavailable):
            await store.swap([Change("/b", 1, 0)])
        etcd.signal(signal.SIGCONT)
        # It may or may not have been carried out: only a later look tells, and that must not fail.
        found = await _once_it_answers(store, "/b")
        assert found is None or found.value == 1
        await store.close()


async def _once_it_answers(store: EtcdMetadata, key: str) -> Versioned | None:
    async with asyncio.timeout(30):
        while True:
            try:
                return await store.get(key)
            except Unavailable:
                await asyncio.sleep(0.05)


@needs_etcd
async def test_a_key_with_a_lease_goes_when_the_lease_does(etcd: EtcdProcess, tmp_path: Path) -> None:
    store = EtcdMetadata([etcd.endpoint], f"/{tmp_path.name}")
    lease = await store.grant(2)
    assert await store.swap([Change("/brokers/1", {}, 0)], lease)
    assert await store.keep_alive(lease)
    await store.revoke(lease)
    assert await store.get("/brokers/1") is None
    assert not await store.keep_alive(lease)
    await store.close()


@needs_etcd
async def test_a_broker_registers_again_although_etcd_went_away_in_the_middle_of_it(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    info = BrokerInfo(1, "127.0.0.1", 9092, "127.0.0.1", 9093, None, 1)
    direct = EtcdMetadata([etcd.endpoint], f"/{tmp_path.name}")
    async with Proxy(etcd.port) as proxy:
        store = EtcdMetadata([proxy.endpoint], f"/{tmp_path.name}", timeout=0.3)
        registration = Registration(store, info, 2)
        await registration.start()
        lost = asyncio.Event()

        def all_but_leases(said: bytes) -> bool:
            if b"/v3/kv/" in said:
                lost.set()
            return b"/v3/kv/" in said

        proxy.swallows = all_but_leases
        assert registration._lease is not None
        await direct.revoke(
            registration._lease
        )  # it ran out: the next lease is granted, the key isn't written
        await asyncio.wait_for(lost.wait(), 5)
        async with aclosing(direct.watch("/brokers/")) as watch:
            assert (await asyncio.wait_for(anext(watch), 5)).entries == ()
            proxy.swallows = nothing
            news = await asyncio.wait_for(anext(watch), 5)
            assert [entry.value["broker_id"] for entry in news.entries] == [1]
        await registration.leave()
        await store.close()
    await direct.close()


@needs_etcd
async def test_a_watch_on_an_etcd_that_vanished_without_a_word_goes_on_at_another(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    direct = EtcdMetadata([etcd.endpoint], f"/{tmp_path.name}")
    async with Proxy(etcd.port) as first, Proxy(etcd.port) as second:
        endpoints = [first.endpoint, second.endpoint]
        store = EtcdMetadata(endpoints, f"/{tmp_path.name}", timeout=0.3, idle=0.5)
        async with aclosing(store.watch("/")) as watch:
            assert (await asyncio.wait_for(anext(watch), 5)).whole
            following = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.2)
            first.swallows = everything
            await direct.swap([Change("/a", 1, 0)])
            news = await asyncio.wait_for(following, 5)
            assert [entry.key for entry in news.entries] == ["/a"]
            assert not news.whole
        await store.close()
    await direct.close()


@needs_etcd
async def test_a_watch_with_nothing_to_tell_is_no_reason_to_say_that_etcd_is_away(
    etcd: EtcdProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = EtcdMetadata([etcd.endpoint], f"/{tmp_path.name}", idle=0.1)
    async with aclosing(store.watch("/")) as watch:
        assert (await asyncio.wait_for(anext(watch), 5)).whole
        following = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(1)
        assert store.reachable
        await store.swap([Change("/a", 1, 0)])
        assert [entry.key for entry in (await asyncio.wait_for(following, 5)).entries] == ["/a"]
    await store.close()
    assert not caplog.records


@needs_etcd
async def test_a_watch_that_breaks_before_it_told_what_it_had_missed_tells_it_later(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    """The first line of a watch has etcd's newest revision, though what led to it is still to come."""
    direct = EtcdMetadata([etcd.endpoint], f"/{tmp_path.name}")
    async with Proxy(etcd.port) as proxy:
        store = EtcdMetadata([proxy.endpoint], f"/{tmp_path.name}")
        async with aclosing(store.watch("/")) as watch:
            assert (await asyncio.wait_for(anext(watch), 5)).whole
            following = asyncio.ensure_future(anext(watch))
            hung_up = asyncio.Event()

            def after_the_first_line(said: bytes) -> bool:
                if b'"created":true' not in said:
                    return False
                assert b'"events"' not in said
                hung_up.set()
                return True

            proxy.hangs_up_after = after_the_first_line
            await asyncio.wait_for(hung_up.wait(), 5)
            hung_up.clear()
            await direct.swap([Change("/a", 1, 0)])
            await asyncio.wait_for(hung_up.wait(), 5)
            proxy.hangs_up_after = nothing
            news = await asyncio.wait_for(following, 5)
            assert [entry.key for entry in news.entries] == ["/a"]
        await store.close()
    await direct.close()


@needs_etcd
async def test_the_first_picture_comes_from_whichever_etcd_answers(etcd: EtcdProcess, tmp_path: Path) -> None:
    endpoints = [f"http://127.0.0.1:{free_port()}", etcd.endpoint]
    store = EtcdMetadata(endpoints, f"/{tmp_path.name}")
    async with aclosing(store.watch("/")) as watch:
        assert (await asyncio.wait_for(anext(watch), 5)).whole
    await store.close()


@needs_etcd
async def test_nothing_is_taken_from_an_etcd_that_went_back_to_a_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its revisions mean other states now: a watch waits for the future, a swap may hit the wrong one."""
    with EtcdProcess(tmp_path / "etcd").start() as etcd:
        before = EtcdMetadata([etcd.endpoint])
        assert await before.swap([Change("/a", 1, 0)])
        await before.close()
        etcd.save(tmp_path / "backup")
        store = EtcdMetadata([etcd.endpoint], timeout=0.5)
        async with aclosing(store.watch("/")) as watch:
            (known,) = (await asyncio.wait_for(anext(watch), 5)).entries
            following = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.2)
            direct = EtcdMetadata([etcd.endpoint])
            assert await direct.swap([Change("/a", 2, known.revision)])
            await direct.close()
            await asyncio.wait_for(following, 5)
            following = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.2)
            etcd.restore(tmp_path / "backup")
            await asyncio.sleep(1)
            for request in (store.get("/a"), store.swap([Change("/b", 1, 0)])):
                with pytest.raises(Unavailable, match="earlier state"):
                    await request
            assert not store.reachable
            assert "earlier state" in caplog.text
            assert not following.done()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await store.close()
        fresh = EtcdMetadata([etcd.endpoint])
        found = await fresh.get("/a")
        assert found is not None
        assert found.value == 1
        await fresh.close()


@needs_etcd
async def test_a_watch_whose_place_was_compacted_away_tells_everything_again(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    store = EtcdMetadata([etcd.endpoint], f"/{tmp_path.name}", idle=0.5)
    others = EtcdMetadata([etcd.endpoint], "/others")
    async with aclosing(store.watch("/")) as watch:
        assert (await asyncio.wait_for(anext(watch), 5)).whole
        following = asyncio.ensure_future(anext(watch))
        await others.swap([Change("/x", 1, 0)])
        found = await others.get("/x")
        assert found is not None
        await others.swap([Change("/x", 2, found.revision)])
        await others._call("/v3/kv/compaction", {"revision": str(found.revision + 1)})
        assert (await asyncio.wait_for(following, 5)).whole
        following = asyncio.ensure_future(anext(watch))
        await store.swap([Change("/a", 1, 0)])
        assert [entry.key for entry in (await asyncio.wait_for(following, 5)).entries] == ["/a"]
        assert store.reachable
    await store.close()
    await others.close()
