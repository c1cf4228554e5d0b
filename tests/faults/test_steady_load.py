"""`penstock load --seconds 0`, the producer of a deployment: it ends when it is told to, and only then."""

from __future__ import annotations

import json
import subprocess
import urllib.request

from harness import PENSTOCK, BrokerProcess, eventually


def _end_offset(broker: BrokerProcess) -> int:
    with urllib.request.urlopen(f"{broker.http}/v1/topics/steady", timeout=5) as answer:
        return sum(partition["high_watermark"] for partition in json.load(answer)["partitions"])


def test_load_goes_on_after_its_broker_was_killed(broker: BrokerProcess) -> None:
    command = ["load", "--seconds", "0", "-t", "steady", "-p", "2", "--rate", "2000", "--chunk", "1KiB"]
    nobody = "127.0.0.1:1"
    load = subprocess.Popen(
        [*PENSTOCK, *command, "--broker", f"{nobody},{broker.address}"], stderr=subprocess.PIPE, text=True
    )
    try:
        broker_has_records(broker, 100)
        broker.kill()
        broker.start()
        broker_has_records(broker, _end_offset(broker) + 100)
        load.terminate()
        assert load.wait(10) == 0
        assert load.stderr is not None
        assert "looking for the leaders" in load.stderr.read()
    finally:
        load.kill()
        load.communicate()


def broker_has_records(broker: BrokerProcess, count: int) -> None:
    def has() -> bool:
        try:
            return _end_offset(broker) >= count
        except OSError:  # the topic isn't there yet, or HTTP comes a moment after Kafka
            return False

    eventually(has, 20, 0.1)
