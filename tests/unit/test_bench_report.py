"""Results as Markdown: between a document's marks, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.bench import report
from penstock.bench.experiment import Sample, load, names
from penstock.bench.results import Result


def result() -> Result:
    subject = load("ingest")
    options = {
        "seconds": subject.seconds,
        "repeat": 1,
        "quick": False,
        "values": {"chunk": "1KiB", "partitions": "8"},
    }
    made = Result("ingest", subject.metrics, "kafka", options=options, commit="abc", complete=True)
    for contender, cost in (("penstock", 50.0), ("kafka", 200.0)):
        figures = {"cpu_us_per_request": cost, "records_per_second": 1.5e6}
        made.samples.append(Sample(contender, {"replication": "1", "chunk": "1KiB"}, 0, figures))
    return made


def test_a_section_has_the_command_the_medians_and_the_goals(tmp_path: Path) -> None:
    text = report.section(report.Found(tmp_path / "x.json", result()), ["benchmarks/ingest.png"])
    assert "`penstock bench ingest -r 1 --chunk 1KiB`" in text
    assert "![ingest](benchmarks/ingest.png)" in text
    assert "| replication=1 chunk=1KiB | 50 (0.25x) | 200 |" in text
    assert "| replication=1 chunk=1KiB | 1.5 M (1x) | 1.5 M |" in text
    assert "goal met: cpu_us_per_request of penstock / kafka" in text


def test_goals_of_all_experiments_have_a_line_each(tmp_path: Path) -> None:
    found = result()
    found.samples.append(
        Sample("penstock", {"replication": "1", "chunk": "4KiB"}, 0, {"cpu_us_per_request": 90.0})
    )
    found.samples.append(
        Sample("kafka", {"replication": "1", "chunk": "4KiB"}, 0, {"cpu_us_per_request": 100.0})
    )
    text = report.goals({"ingest": report.Found(tmp_path / "x.json", found)})
    assert "| ingest | cpu_us_per_request of penstock / kafka, replication=1 | 0.333 | 0.9 | 1 of 2 |" in text
    found.samples.append(
        Sample("penstock", {"replication": "1", "chunk": "16KiB"}, 0, {"cpu_us_per_request": 90.0})
    )
    text = report.goals({"ingest": report.Found(tmp_path / "x.json", found)})
    assert "| 0.333 | 0.9 | 1 of 2, 1 not judged |" in text


def test_goals_that_were_not_measured_are_not_left_out() -> None:
    text = report.goals({})
    for name in names():
        assert text.count(f"| {name} | ") == len(load(name).goals)
    lines = [line for line in text.splitlines() if line.startswith("| latency | ")]
    assert any(line.endswith("| - | not run: `penstock bench latency` |") for line in lines)
    assert any(line.endswith("| - | not run: `penstock bench latency --run changes` |") for line in lines)


def test_a_goal_of_a_contender_that_was_missing_is_not_judged(tmp_path: Path) -> None:
    found = result()
    found.samples = [sample for sample in found.samples if sample.contender == "penstock"]
    text = report.goals({"ingest": report.Found(tmp_path / "x.json", found)})
    assert (
        "| ingest | cpu_us_per_request of penstock / kafka, replication=1 | 0.333 | - | not judged |" in text
    )


def test_tables_say_how_far_samples_are_apart(tmp_path: Path) -> None:
    found = result()
    for round_, (cost, rate) in enumerate(((40.0, 0.9e6), (60.0, 2e6)), 1):
        figures = {"cpu_us_per_request": cost, "records_per_second": rate}
        found.samples.append(Sample("penstock", {"replication": "1", "chunk": "1KiB"}, round_, figures))
    text = report.section(report.Found(tmp_path / "x.json", found), [])
    assert "| replication=1 chunk=1KiB | 50 [40-60] (0.25x) | 200 |" in text
    assert "| replication=1 chunk=1KiB | 1.5 M [900 k-2 M] (1x) | 1.5 M |" in text


def test_a_section_says_how_long_it_took_and_whether_the_machine_was_quiet(tmp_path: Path) -> None:
    found = result()
    found.took_seconds = 123.4
    found.machine = {"cpus": 2, "busy_before": 0.02}
    assert ", took 2:03\n" in report.section(report.Found(tmp_path / "x.json", found), [])
    found.machine = {"cpus": 2, "busy_before": 0.5}
    assert "**CPUs 50% busy before**" in report.section(report.Found(tmp_path / "x.json", found), [])


def test_only_what_is_between_the_marks_is_written_anew() -> None:
    document = (
        "before\n<!-- bench ingest -->\nold\n<!-- end -->\nmiddle\n<!-- bench push -->\nkept\n<!-- end -->\n"
    )
    filled = report.fill(document, {"ingest": "new\n"})
    assert filled == document.replace("old", "new")
    assert report.fill(filled, {"ingest": "new\n"}) == filled


def test_the_newest_result_of_each_experiment_is_taken(tmp_path: Path) -> None:
    older, newer = result(), result()
    newer.commit = "def"
    older.write(tmp_path / "z.json")
    newer.write(tmp_path / "a.json")
    (tmp_path / "junk.json").write_text("{}")
    os.utime(tmp_path / "z.json", (1, 1))
    found = report.newest(tmp_path)
    assert list(found) == ["ingest"]
    assert found["ingest"].result.commit == "def"
