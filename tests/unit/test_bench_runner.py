"""The bench's runner: turns, missing contenders, what is kept when a run is cut short."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.bench import experiment, kafka, results, runner
from penstock.bench.experiment import (
    Better,
    CannotStart,
    Experiment,
    Figures,
    Goal,
    Metric,
    Options,
    Parameter,
    Variant,
)
from penstock.bench.rig import ProcessFailed, Rig
from penstock.cli import benchrun
from penstock.spark import kafka_source

OPTIONS = Options(seconds=0.1, repeat=2)


class Told(Experiment):
    """Measures nothing, remembers what it was asked."""

    about = "a test"
    metrics = (Metric("cost", "us", Better.LESS),)
    contenders = ("ours", "theirs", "absent")
    baseline = "theirs"
    goals = (Goal("cost", "ours", 0.5, to="theirs"),)
    calls: ClassVar[list[tuple[str, ...]]] = []

    def variants(self) -> Sequence[Variant]:
        return [{"chunk": "1"}, {"chunk": "2"}]

    def start(self, contender: str) -> None:
        if contender == "absent":
            raise CannotStart("not on this machine")

    def warm_up(self, contender: str, variant: Variant) -> None:
        self.calls.append(("warm", contender, variant["chunk"]))

    def measure(self, contender: str, variant: Variant) -> Figures:
        self.calls.append(("measure", contender, variant["chunk"]))
        return {"cost": 10.0 if contender == "ours" else 40.0, "detail": 1.0}


class Interrupted(Told):
    def measure(self, contender: str, variant: Variant) -> Figures:
        if len(self.calls) > 3:
            self.rig.spawn("left", [sys.executable, "-c", "import time; time.sleep(60)"], server=False)
            raise KeyboardInterrupt
        return super().measure(contender, variant)


@pytest.fixture(autouse=True)
def _fresh_calls() -> None:
    Told.calls.clear()


def test_contenders_take_turns_once_all_are_warm(tmp_path: Path) -> None:
    runner.run("told", Told, OPTIONS, tmp_path / "r.json")
    first_variant = [call for call in Told.calls if call[2] == "1"]
    assert first_variant == [
        ("warm", "ours", "1"),
        ("warm", "theirs", "1"),
        ("measure", "ours", "1"),
        ("measure", "theirs", "1"),
        ("measure", "theirs", "1"),
        ("measure", "ours", "1"),
    ]


def test_a_contender_that_cannot_start_is_missing_and_not_a_zero(tmp_path: Path) -> None:
    result = runner.run("told", Told, OPTIONS, tmp_path / "r.json")
    assert result.missing == {"absent": "not on this machine"}
    assert {sample.contender for sample in result.samples} == {"ours", "theirs"}
    assert ("chunk=1", "absent") not in result.medians()


def test_what_fails_to_warm_up_is_told_and_not_measured(tmp_path: Path) -> None:
    class Cold(Told):
        def warm_up(self, contender: str, variant: Variant) -> None:
            if contender == "theirs":
                raise ProcessFailed("it froze")

    result = runner.run("told", Cold, OPTIONS, tmp_path / "r.json")
    assert {sample.contender for sample in result.samples} == {"ours"}
    assert result.failures == [f"chunk={chunk} theirs, warming up: it froze" for chunk in (1, 2)]


def test_a_result_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = runner.run("told", Told, OPTIONS, tmp_path / "r.json")
    read = results.read(tmp_path / "r.json")
    assert read.complete
    assert read.document() == written.document()
    assert read.machine["cpus"] >= 1
    assert read.versions["python"]


def test_a_result_says_how_long_it_took(tmp_path: Path) -> None:
    class Slow(Told):
        def start(self, contender: str) -> None:
            time.sleep(0.1)

    runner.run("told", Slow, OPTIONS, tmp_path / "r.json")
    assert 0.3 <= results.read(tmp_path / "r.json").took_seconds < 10


def test_a_result_with_kafka_names_the_source_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kafka(Told):
        contenders = ("ours", "kafka tuned")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "penstock" / "spark-kafka").mkdir(parents=True)
    jar = kafka_source.jar_of("org.apache.kafka:kafka-clients:3.9.1")
    jar.touch()
    assert runner.run("told", Kafka, OPTIONS, tmp_path / "r.json").versions["kafka-clients"] == "3.9.1"
    assert "kafka-clients" not in runner.run("told", Told, OPTIONS, tmp_path / "r.json").versions


def test_experiments_have_an_order_and_new_ones_come_last() -> None:
    assert experiment.in_order(["zebra", "catchup", "apple", "figure3", "ingest"]) == [
        "ingest",
        "figure3",
        "catchup",
        "apple",
        "zebra",
    ]
    assert experiment.names()[0] == "ingest"


def test_what_a_run_of_all_did_not_measure_is_told(tmp_path: Path) -> None:
    class Failing(Told):
        def measure(self, contender: str, variant: Variant) -> Figures:
            raise ProcessFailed("it broke")

    class Whole(Told):
        contenders = ("ours", "theirs")

    for name, subject in (("partly", Told), ("failing", Failing), ("whole", Whole)):
        runner.run(name, subject, OPTIONS, tmp_path / f"{name}.json")
    gaps = benchrun.gaps(["partly", "failing", "whole", "gone"], tmp_path)
    assert gaps["partly"] == ["missing: absent: not on this machine"]
    assert gaps["failing"][0] == "no samples"
    assert "failed: chunk=1 ours, round 0: it broke" in gaps["failing"]
    assert "No such file" in gaps["gone"][0]
    assert "whole" not in gaps


def test_kafka_is_fetched_before_the_first_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def none() -> Path:
        asked.append("kafka")
        raise kafka.NoKafka("no Maven")

    monkeypatch.setattr(kafka, "jars", none)
    monkeypatch.setattr(kafka_source, "kafka_jars", lambda: asked.append("source"))
    benchrun.fetch_kafka(["replication"])
    assert asked == []
    benchrun.fetch_kafka(["replication", "ingest"])
    assert asked == ["kafka", "source"]


def test_an_interrupted_run_keeps_its_samples_and_leaves_no_process(tmp_path: Path) -> None:
    made: list[Rig] = []

    class Watched(Interrupted):
        def __init__(self, rig: Rig, options: Options) -> None:
            super().__init__(rig, options)
            made.append(rig)

    with pytest.raises(KeyboardInterrupt):
        runner.run("told", Watched, OPTIONS, tmp_path / "r.json")
    kept = results.read(tmp_path / "r.json")
    assert not kept.complete
    assert [sample.contender for sample in kept.samples] == ["ours", "theirs"]
    assert made[0]._children
    assert not any(child.running for child in made[0]._children)
    assert not any(directory.exists() for directory in made[0]._directories)


def test_goals_are_judged_by_ratio(tmp_path: Path) -> None:
    result = runner.run("told", Told, OPTIONS, tmp_path / "r.json")
    assert [(verdict.variant, verdict.value, verdict.met) for verdict in result.judge(Told.goals)] == [
        ("chunk=1", 0.25, True),
        ("chunk=2", 0.25, True),
    ]


def test_the_time_left_is_told(tmp_path: Path) -> None:
    steps: list[runner.Step] = []
    runner.run("told", Told, OPTIONS, tmp_path / "r.json", watch=steps.append)
    assert steps[-1].done == 7
    assert steps[-1].total == 8
    assert steps[-1].seconds_left is not None


def test_quick_takes_the_quick_values_and_options_win() -> None:
    class Tuned(Told):
        parameters = (Parameter("size", "10", "", quick="1"), Parameter("other", "a,b", ""))

    quick = Tuned.options_from(None, None, True, {"other": "c, d"})
    assert (quick.seconds, quick.repeat) == (Tuned.quick_seconds, Tuned.quick_repeat)
    assert quick.number("size") == 1
    assert quick.texts("other") == ["c", "d"]
    assert Tuned.options_from(3.0, 7, True, {"size": "5"}).text("size") == "5"


def test_a_quick_run_has_its_contenders_unless_others_are_named() -> None:
    class Short(Told):
        quick_contenders = ("ours",)

    assert Short.options_from(None, None, True, {}).contenders == ["ours"]
    assert Short.options_from(None, None, True, {}, "theirs").contenders == ["theirs"]
    assert Short.options_from(None, None, False, {}).contenders == []


def test_only_the_contenders_that_were_asked_for_run(tmp_path: Path) -> None:
    options = Told.options_from(None, 1, True, {}, "theirs")
    result = runner.run("told", Told, options, tmp_path / "r.json")
    assert {sample.contender for sample in result.samples} == {"theirs"}
    with pytest.raises(ValueError, match="nobody"):
        Told.options_from(None, None, False, {}, "nobody")


def test_every_experiment_says_what_it_is() -> None:
    for name in experiment.names():
        subject = experiment.load(name)
        assert subject.about
        assert subject.baseline is None or subject.baseline in subject.contenders
        named = {metric.name for metric in subject.metrics}
        assert {goal.metric for goal in subject.goals} <= named


def test_children_run_on_the_cpus_they_should_have() -> None:
    ask = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    with Rig() as rig:
        server = rig.spawn("server", ask, server=True).finish(10)
        assert server.strip() == str(sorted(rig.server_cpus))
        assert rig.run("load", ask).strip() == str(sorted(rig.load_cpus))
        if rig.pinned:
            assert not rig.server_cpus & rig.load_cpus


def test_a_child_and_what_it_started_may_use_more_cpus_for_a_while() -> None:
    script = "import subprocess as s; p = s.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with Rig() as rig:
        child = rig.spawn("parent", [sys.executable, "-c", script], server=False)
        child.wait_for_line("^[0-9]+$", 10)
        both = (child.pid, int(child.output))
        with child.also_on(rig.server_cpus):
            assert [os.sched_getaffinity(pid) for pid in both] == [rig.server_cpus | rig.load_cpus] * 2
        assert [os.sched_getaffinity(pid) for pid in both] == [rig.load_cpus] * 2


def test_a_child_is_killed_with_all_that_it_started() -> None:
    script = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    )
    with Rig() as rig:
        child = rig.spawn(
            "parent", [sys.executable, "-c", f"{script}; import time; time.sleep(60)"], server=False
        )
        child.wait_for_line(r"^\d+$", 10)
        grandchild = int(child.output)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(grandchild, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{grandchild}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if state == "Z":  # nobody's child any more, not yet reaped
            return
        time.sleep(0.01)
    os.kill(grandchild, signal.SIGKILL)
    pytest.fail("the grandchild lives on")


def test_a_child_that_fails_says_what_it_printed() -> None:
    with Rig() as rig, pytest.raises(ProcessFailed, match="no such thing"):
        rig.run("bad", [sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_cpu_time_and_memory_of_a_child() -> None:
    burn = "x = bytearray(50 << 20); print('ready', flush=True)\nwhile True: pass"
    with Rig() as rig:
        child = rig.spawn("burn", [sys.executable, "-c", burn], server=False)
        child.wait_for_line("^ready", 10)
        before = child.cpu_seconds()
        deadline = time.monotonic() + 10
        while child.cpu_seconds() - before < 0.05:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert child.memory().anonymous > 50 << 20
