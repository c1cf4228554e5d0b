"""A leader and its backup, for experiments about replication: two brokers of ours, one leads it all."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from penstock.bench import replicas
from penstock.bench.replicas import Replicated
from penstock.bench.rig import ProcessFailed, Rig
from penstock.bench.servers import PenstockServer

_PATIENCE: Final = 60.0


class Pair:
    """Brokers 1 and 2 on an etcd, and one topic with a replica on each."""

    def __init__(
        self,
        rig: Rig,
        memory: int,
        *,
        cpus: frozenset[int] | None = None,
        suspicion_ms: int | None = replicas.PATIENT,
    ) -> None:
        made = replicas.make(PenstockServer.name, rig, memory, 2, cpus=cpus, suspicion_ms=suspicion_ms)
        assert isinstance(made, Replicated)
        self.server = made
        self.topic = ""
        self._partitions = 0

    def start(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        self.server.start()
        self.topic, self._partitions = topic, partitions
        self.server.create_topic(topic, partitions, configs, 2, one_leads=True)
        self.wait_in_sync(2)

    def broker(self, number: int) -> PenstockServer:
        found = self.server.brokers[number - 1]
        assert isinstance(found, PenstockServer)
        return found

    def leader(self, partition: int = 0) -> int:
        leader: int = self._states()[partition]["leader"]
        return leader

    def wait_in_sync(self, count: int, timeout: float = _PATIENCE, pause: float = 0.1) -> None:
        deadline = time.monotonic() + timeout
        while any(len(state["in_sync"]) != count for state in self._states()):
            if time.monotonic() > deadline:
                raise ProcessFailed(f"not {count} in sync within {timeout:.0f} s: {self._states()}")
            time.sleep(pause)

    def _states(self) -> list[Any]:
        """What the first broker that answers knows; less work for the machine than asking etcd by command."""
        import urllib.request

        for number in (1, 2):
            try:
                url = f"http://{self.broker(number).http}/v1/cluster"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    found = json.load(answer)["partitions"]
                states = [each for each in found if each["topic"] == self.topic]
                if len(states) == self._partitions:
                    return states
            except OSError:
                continue
        return [{"leader": -1, "in_sync": []}] * self._partitions
