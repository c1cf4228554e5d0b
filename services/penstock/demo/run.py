"""The demo's director: starts the processes, reads their reports, draws, checks, cleans up."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Final

from rich.console import Console
from rich.live import Live as RichLive

from penstock.demo.brokers import Brokers, NotStarted
from penstock.demo.check import OnceAndInOrder
from penstock.demo.screen import Live, ModeFigures, comparison

TOPIC: Final = "demo"
PARTITIONS: Final = 4
MODES: Final = ("push", "pull")
TURNS: Final = ("push", "pull", "pull", "push")
"""The JVM compiles what runs often for the better part of a minute, and gets faster meanwhile: in this order
neither mode has more of it than the other."""
_WARM_SECONDS: Final = 15.0
"""Each mode streams so long before anything is measured."""
_REFRESH: Final = 0.25


class DemoFailed(Exception):
    """One line that says what went wrong."""


class Demo:
    def __init__(self, seconds: float, rate: int, console: Console) -> None:
        self._seconds = seconds
        self._rate = rate
        self._console = console
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        self._shm = Path(
            tempfile.mkdtemp(prefix="penstock-demo-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        )
        self._processes: list[subprocess.Popen[str]] = []
        self._brokers = Brokers(self._start, self._directory, self._shm)
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._check = OnceAndInOrder()
        self._final_ends: dict[int, int] = {}
        self._live = Live(modes={mode: ModeFigures() for mode in MODES})

    def run(self) -> None:
        """The whole story; raises DemoFailed when it has no happy end."""
        try:
            with RichLive(self._live, console=self._console, refresh_per_second=8, transient=False):
                self._start_brokers()
                self._start_producer(2 * (_WARM_SECONDS + self._seconds) + 10)
                self._start_job()
                for mode in MODES:
                    self._stream(mode, f"warming up by {mode}", _WARM_SECONDS)
                for turn, mode in enumerate(TURNS, 1):
                    step, seconds = f"PySpark reads by {mode}", self._seconds / TURNS.count(mode)
                    self._live.modes[mode].add(self._stream(mode, step, seconds, last=turn == len(TURNS)))
                self._tell_job("replay")
                self._live.step = "reading all of it again, by push and by pull"
                replay = self._wait_for("replay", 120)
                for mode, figures in self._live.modes.items():
                    figures.replay = replay[mode]["records"] / replay[mode]["seconds"]
                self._live.step = "done"
            self._console.print(comparison(self._live.modes))
            self._verdict()
        except DemoFailed:
            self._console.print(f"the logs of all processes are in {self._directory}")
            raise
        else:
            shutil.rmtree(self._directory, ignore_errors=True)
        finally:
            self._clean_up()

    # Processes

    def _start(self, name: str, *command: str) -> subprocess.Popen[str]:
        log = (self._directory / f"{name}.log").open("w")
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        self._processes.append(process)
        return process

    def _start_brokers(self) -> None:
        self._live.setting = self._brokers.setting
        self._live.step = "starting the brokers"
        try:
            self._brokers.start()
        except NotStarted as problem:
            raise DemoFailed(f"{problem.name} did not start: {self._tail(problem.name)}") from None

    def _start_producer(self, seconds: float) -> None:
        # Makes the topic; its records begin to flow at once, so the job has something to catch up with.
        self._producer = self._start(
            "producer",
            *(sys.executable, "-m", "penstock.cli.main", "load"),
            *("--broker", self._brokers.address, "--topic", TOPIC, "--partitions", str(PARTITIONS)),
            *("--chunk", "4KiB", "--rate", str(self._rate), "--seconds", str(seconds + 60), "--json"),
        )

    def _start_job(self) -> None:
        self._live.step = "starting Spark (this takes longest)"
        deadline = time.monotonic() + 30
        while TOPIC not in self._brokers.topics():
            if time.monotonic() > deadline or self._producer.poll() is not None:
                raise DemoFailed(f"the producer did not start: {self._tail('producer')}")
            time.sleep(0.05)
        self._job = self._start(
            "job",
            *(sys.executable, "-m", "penstock.demo.job"),
            *("--servers", self._brokers.servers, "--topic", TOPIC, "--partitions", str(PARTITIONS)),
            *("--directory", str(self._directory)),
        )
        threading.Thread(target=self._listen, args=(self._job.stdout,), daemon=True).start()
        self._wait_for("ready", 120)

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            if line.startswith("{"):
                self._events.put(json.loads(line))

    def _tell_job(self, text: str) -> None:
        assert self._job.stdin is not None
        self._job.stdin.write(text + "\n")
        self._job.stdin.flush()

    # Phases

    def _stream(self, mode: str, step: str, seconds: float, *, last: bool = False) -> ModeFigures:
        figures = ModeFigures()
        self._live.step = step
        self._tell_job(mode)
        self._wait_for("started", 60)
        self._first_batch(mode, figures)
        cpu, fetches, began = self._brokers.cpu(), self._brokers.fetches(), time.monotonic()
        self._draw_until(began + seconds, figures)
        figures.seconds = time.monotonic() - began
        figures.broker_cpu = self._brokers.cpu() - cpu
        figures.fetches = self._brokers.fetches() - fetches
        if last:
            self._producer.terminate()
            self._producer.wait(15)
            self._final_ends = self._brokers.ends(TOPIC)
        self._live.step = f"{step}: the rest"
        self._tell_job(json.dumps(self._final_ends) if last else "{}")
        self._wait_for("finished", 90)
        return figures

    def _first_batch(self, mode: str, figures: ModeFigures) -> None:
        """A query's first batch takes what it takes to plan it; the figures begin after it."""
        deadline = time.monotonic() + 60
        while not figures.records_out:
            if time.monotonic() > deadline:
                raise DemoFailed(f"nothing came by {mode} in 60 s: {self._tail('job')}")
            self._drain(_REFRESH, figures)
        figures.records_out = 0

    def _draw_until(self, deadline: float, figures: ModeFigures) -> None:
        previous, at = sum(self._brokers.ends(TOPIC).values()), time.monotonic()
        read, cpu = self._check.records, self._brokers.cpu()
        while time.monotonic() < deadline:
            self._drain(_REFRESH, figures)
            now = time.monotonic()
            if now - at < 1:
                continue
            total = sum(self._brokers.ends(TOPIC).values())
            self._live.rate_in = (total - previous) / (now - at)
            self._live.rate_out = (self._check.records - read) / (now - at)
            self._live.broker_cpu = 100 * (self._brokers.cpu() - cpu) / (now - at)
            self._live.lag = total - self._check.records
            previous, at, read, cpu = total, now, self._check.records, self._brokers.cpu()

    def _drain(self, timeout: float, figures: ModeFigures | None = None) -> dict[str, Any] | None:
        """Take one event of the job; micro-batches are counted here, others are returned."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            for name, process in (*self._brokers.processes.items(), ("job", self._job)):
                if process.poll() is not None and self._events.empty():
                    raise DemoFailed(f"the {name} ended too early: {self._tail(name)}") from None
            return None
        if event["event"] != "batch":
            return event
        for partition, first, last, records in event["partitions"]:
            self._check.batch(partition, first, last, records)
            if figures is not None:
                figures.records_out += records
        self._live.records = self._check.records
        self._live.p50, self._live.p99 = event["p50"], event["p99"]
        if figures is not None and event["id"] > 0:
            figures.latencies_p50.append(event["p50"])
            figures.latencies_p99.append(event["p99"])
        return None

    def _wait_for(self, name: str, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            event = self._drain(_REFRESH)
            if event is not None and event["event"] == name:
                return event
        raise DemoFailed(f"no {name!r} from the Spark job in {seconds:.0f} s: {self._tail('job')}")

    # The end

    def _verdict(self) -> None:
        self._check.finish(self._final_ends)
        if self._check.problems:
            for problem in self._check.problems[:10]:
                self._console.print(f"[red]{problem}")
            raise DemoFailed(
                f"{len(self._check.problems)} problems: records were lost, repeated or misplaced"
            )
        self._console.print(
            f"[green]{self._check.records:,} records: every one arrived exactly once and in order."
        )

    def _tail(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")[-1500:].strip() or "no output"

    def _clean_up(self) -> None:
        # One after the other: a broker ends well only while there is an etcd to tell.
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self._shm, ignore_errors=True)
