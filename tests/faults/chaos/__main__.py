"""`python -m chaos`: a cluster of three, load on it, faults from a seed, and the checker's verdict.

Exits with 0 when the verdict is good. `make chaos MINUTES=60 SEED=7` calls it; a few minutes of it
are in the test suite.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from chaos import checker, faults, ground, history, report
from chaos.clients import PATIENCE, read_all
from chaos.faults import PARTITIONS, TOPIC, Round, Stage
from chaos.history import History
from cluster import Cluster
from harness import PENSTOCK, eventually

BROKERS: Final = 3
_LEADING: Final = re.compile(rf"{TOPIC}-(\d+)\W.* leading in epoch (\d+) ")
_HERE: Final = Path(__file__).resolve().parent


class Acknowledgements:
    """Follows the producers' histories while they are written: when was each partition last acknowledged?"""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = defaultdict(int)
        self.times: dict[int, list[float]] = defaultdict(list)

    def look(self) -> None:
        for path in self._directory.glob("producer-*.jsonl"):
            with path.open() as lines:
                lines.seek(self._read[path])
                for line in lines:
                    if not line.endswith("\n"):
                        break
                    self._read[path] += len(line)
                    event = json.loads(line)
                    if event[0] == "acked":
                        self.times[event[3]].append(event[1])

    def since(self, moment: float, partition: int) -> int:
        self.look()
        times = self.times[partition]
        at = len(times)
        while at and times[at - 1] > moment:
            at -= 1
        return len(times) - at


class Run:
    def __init__(self, told: argparse.Namespace, machines: ground.Machines, directory: Path) -> None:
        self._told = told
        self._out: Path = told.out
        self._cluster = Cluster(directory, BROKERS, ground=machines, memory="48MiB")
        self._stage = Stage(self._cluster, machines)
        self._possible = tuple(told.only) or faults.kinds(
            disks=machines.has_disks, clocks=machines.has_clocks
        )
        self._history = History(self._out / "harness.jsonl")
        self._acknowledged = Acknowledgements(self._out)
        self._zero = 0.0
        self._clients: subprocess.Popen[bytes] | None = None
        self.played: list[report.Played] = []

    def run(self) -> checker.Verdict:
        told, out = self._told, self._out
        say(f"seed {told.seed}, faults: {', '.join(self._possible)}; history in {out}")
        with self._cluster.start() as cluster:
            configs = {"segment.bytes": "1048576", "min.insync.replicas": str(told.min_insync)}
            cluster.create(TOPIC, PARTITIONS, BROKERS, configs)
            cluster.in_sync("__consumer_offsets", BROKERS)
            clients = self._start_clients()
            try:
                stuck = self._rounds()
                self._finish(clients, stuck)
            finally:
                clients.kill()
                clients.wait()
                self._note_leaders()
                self._history.close()
        verdict = checker.check(lambda: history.read(out))
        if stuck:
            verdict.note("stuck", stuck)
        settings: dict[str, object] = {"seed": told.seed, "faults": self._possible, "rate": told.rate}
        report.save(out, settings, verdict, self.played)
        picture = report.plot(out, lambda: history.read(out), self._zero, self.played)
        say(f"timeline: {out}/timeline.txt" + (f", plot: {picture}" if picture else ""))
        return verdict

    def _finish(self, clients: subprocess.Popen[bytes], stuck: str) -> None:
        """Everybody to the end, then the whole log again; of a cluster that is stuck, what can be had."""
        assert clients.stdin is not None
        clients.stdin.write(b"enough\n")
        clients.stdin.flush()
        try:
            clients.wait(30 if stuck else 3 * PATIENCE)
            if not stuck:
                self._read_everywhere()
        except subprocess.TimeoutExpired:
            if not stuck:
                raise
        if stuck:
            read_all(f"{checker.FINAL}-stuck", self._cluster.bootstrap, TOPIC, PARTITIONS, self._out)

    def _start_clients(self) -> subprocess.Popen[bytes]:
        with (self._out / "clients.log").open("wb") as log:
            clients = subprocess.Popen(
                [
                    *(sys.executable, "-m", "chaos.clients", "--bootstrap", self._cluster.bootstrap),
                    *("--topic", TOPIC, "--partitions", str(PARTITIONS)),
                    *("--rate", str(self._told.rate), "--out", str(self._out)),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._clients = clients
        self._zero = time.monotonic()
        self._wait_for_progress(self._zero)
        return clients

    def _rounds(self) -> str:
        """Play until time or rounds are up. Returns why it could not go on, if so."""
        end = self._zero + self._told.minutes * 60 if self._told.minutes else float("inf")
        told = self._told
        for round_ in faults.schedule(told.seed, self._possible, role=told.role, alone=told.alone):
            if round_.number > (told.rounds or float("inf")) or time.monotonic() > end:
                return ""
            try:
                self._play(round_)
            except Exception as error:
                say(f"round {round_.number}: {error!r}"[:2000])
                (self._out / "brokers.log").write_text(self._cluster.logs())
                return f"round {round_.number} ({', '.join(map(str, round_.faults))}): {error!r}"[:500]
        return ""

    def _play(self, round_: Round) -> None:
        time.sleep(round_.pause)
        began = time.monotonic()
        words: list[str] = []

        def tell(what: str) -> None:
            words.append(what)
            self._history.add("fault", round_.number, what)

        self._stage.play(round_, tell)
        healed = time.monotonic()
        self._history.add("healed", round_.number)
        for broker in self._cluster.brokers.values():
            broker.ready(max(60.0, self._told.patience))
        self._wait_for_progress(healed)
        self._wait_until_in_sync()
        well = time.monotonic()
        self._history.add("well", round_.number)
        times = self._acknowledged.times
        pause = max(report.pauses(times[p], began, well) for p in range(PARTITIONS))
        zero = self._zero
        self.played.append(
            report.Played(
                round_.number,
                " + ".join(words),
                round(began - zero, 2),
                round(healed - zero, 2),
                round(well - zero, 2),
                round(pause, 2),
            )
        )
        count = sum(map(len, times.values()))
        say(
            f"{began - zero:7.1f} s  round {round_.number:3d}  {' + '.join(words):58s} "
            f"well after {well - began:5.1f} s, pause {pause:5.2f} s, {count} acknowledged"
        )

    def _wait_until_in_sync(self) -> None:
        """Every partition once: on a machine that is short of CPU they need not all be at the same moment."""
        seen: set[tuple[str, int]] = set()

        def each_was() -> bool:
            there = True
            for topic in (TOPIC, "__consumer_offsets"):
                for index, state in self._cluster.partitions(topic).items():
                    if len(state["in_sync"]) == BROKERS:
                        seen.add((topic, index))
                    there &= (topic, index) in seen
            return there

        eventually(each_was, self._told.patience, 0.1)

    def _wait_for_progress(self, moment: float) -> None:
        def written_everywhere() -> bool:
            if self._clients is not None and self._clients.poll() is not None:
                raise RuntimeError((self._out / "clients.log").read_text())
            return all(self._acknowledged.since(moment, p) >= 5 for p in range(PARTITIONS))

        eventually(written_everywhere, self._told.patience, 0.1)

    def _read_everywhere(self) -> None:
        """Let each broker lead everything once, and read the log from it: replicas must be the same."""
        for number in self._cluster.brokers:
            for partition in range(PARTITIONS):
                words = ["cluster", "move-leader", TOPIC, str(partition), str(number)]
                subprocess.run(
                    [*PENSTOCK, *words, "--cluster", self._cluster.etcd.endpoint, "--wait", "60"],
                    check=True,
                    capture_output=True,
                    timeout=90,
                )
            read_all(f"{checker.FINAL}-{number}", self._cluster.bootstrap, TOPIC, PARTITIONS, self._out)

    def _note_leaders(self) -> None:
        for number, broker in self._cluster.brokers.items():
            for partition, epoch in _LEADING.findall(broker.log_text()):
                self._history.add("led", number, int(partition), int(epoch))


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long")
    parser.add_argument("--rounds", type=int, default=0, help="stop after so many rounds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=400, help="records a second")
    parser.add_argument("--min-insync", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="these kinds of fault; may be repeated")
    parser.add_argument("--role", choices=["leader", "backup", "anybody"], help="whom faults hit")
    parser.add_argument("--alone", action="store_true", help="no second fault on top of the first")
    parser.add_argument("--patience", type=float, default=180, help="seconds to recover from a round")
    parser.add_argument("--ground", choices=["namespaces", "proxies"], help="not the first that can be had")
    parser.add_argument("--out", type=Path, required=True, help="a directory that doesn't exist")
    told = parser.parse_args()
    if not told.minutes and not told.rounds:
        parser.error("say --minutes or --rounds")
    inside = told.ground != "proxies" and ground.enter(sys.argv[1:])
    if told.ground == "namespaces" and not inside:
        parser.error("no namespaces here")
    if not inside and set(told.only) & set(faults.WITH_DISKS):
        parser.error(f"{', '.join(faults.WITH_DISKS)}: only with namespaces")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the first process of a namespace has no default
    told.out = told.out.resolve()
    told.out.mkdir(parents=True)
    directory = told.out / "machines"
    names = ["etcd", *(f"broker-{number}" for number in range(1, BROKERS + 1))]
    clocks = not told.only or any(kind in told.only for kind in faults.WITH_CLOCKS)
    machines = (ground.Fields if inside else ground.Loopback)(directory, names, told.seed, clocks=clocks)
    if not inside:
        say("on the loopback: proxies for a network, and no full disk")
    if clocks and not machines.has_clocks:
        say("no libfaketime here: no steps of the clock")
    verdict = Run(told, machines, directory).run()
    say(str(verdict))
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.path[:0] = [str(_HERE.parent.parent), str(_HERE.parent)]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
