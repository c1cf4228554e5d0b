"""Starting: what a probe is told meanwhile, and with how little memory a broker does its work."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from harness import PENSTOCK, BrokerProcess
from penstock.broker.server import Broker
from penstock.log import store
from penstock.settings import load

PARTITIONS = 12
SLOW = 0.25


@pytest.fixture
def shm() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-test-", dir="/dev/shm"))
    yield directory
    rmtree(directory, ignore_errors=True)


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


async def test_a_start_that_takes_long_says_at_readyz_how_far_it_is(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "data_dir": tmp_path, "shm_dir": shm}
    settings, _ = load({**options, "memory": "64MiB"}, {"PENSTOCK_OFFSETS_PARTITIONS": "1"}, None)
    first = Broker(settings)
    await first.start()
    await first.keeper.create("t", PARTITIONS, {})
    await first.stop()

    recover = store.recover

    def slowly(*place: Any) -> Any:
        time.sleep(SLOW)  # a disk with much on it
        return recover(*place)

    monkeypatch.setattr(store, "recover", slowly)
    second = Broker(settings)
    starting = asyncio.create_task(second.start())
    await asyncio.sleep(SLOW)  # the socket is bound first
    url = second.http.url
    status, answer = await asyncio.to_thread(get, f"{url}/readyz")
    assert status == 503, "answered before it was ready"
    done, total = answer["reason"].removeprefix("starting: ").split(" partitions")[0].split(" of ")
    assert 0 < int(done) <= int(total) == PARTITIONS + 1
    assert (await asyncio.to_thread(get, f"{url}/v1/broker"))[0] == 503
    assert (await asyncio.to_thread(get, f"{url}/healthz"))[0] == 200
    await starting
    assert (await asyncio.to_thread(get, f"{url}/readyz"))[0] == 200
    assert (await asyncio.to_thread(get, f"{url}/v1/broker"))[0] == 200
    await second.stop()


def test_32_mib_are_enough_for_8_busy_partitions(tmp_path: Path) -> None:
    """Segments double up to 16 MiB in a large budget; in this one two would have it all."""
    with BrokerProcess(tmp_path / "broker", memory="32MiB") as broker:
        broker.start()
        command = [*PENSTOCK, "load", "-b", broker.address, "-p", "8", "--chunk", "64KiB", "--seconds", "3"]
        report = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)
    assert report["refused"] == 0, report
    assert report["bytes"] > 4 * 32 << 20, "less than it takes to go round the budget"


def test_with_log_json_every_line_is_an_object(shm: Path, tmp_path: Path) -> None:
    command = [*PENSTOCK, "broker", "--log-json", "--log-level", "warning", "--listen", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", "--data-dir", str(tmp_path), "--shm-dir", str(shm)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        process.terminate()
        messages = [first["message"], *(json.loads(line)["message"] for line in process.stdout)]
    assert messages[0].startswith("ready: kafka 127.0.0.1:")
    assert messages[-1] == "stopped: everything is on disk"
