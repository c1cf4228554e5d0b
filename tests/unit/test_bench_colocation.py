"""What colocation experiments reckon with: throughput by the second, the text they load, their sweeps."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from penstock.bench import experiment
from penstock.bench.colocation import Colocation
from penstock.bench.consumers import Tally, median_per_second, rate_in_batches_of, steady_rate
from penstock.bench.experiment import Sample
from penstock.bench.rig import Rig
from penstock.bench.sparkprocess import Batch
from penstock.load.content import ad_events, campaign_of_ad, filler, text


def test_the_median_second_is_that_of_all_consumers_together() -> None:
    steady = Tally([(100.0, 0), (110.0, 1000)])
    late = Tally([(100.0, 0), (105.0, 0), (110.0, 500)])
    assert median_per_second([steady], 100.0, 110.0) == pytest.approx(100)
    assert median_per_second([steady, late], 106.0, 110.0) == pytest.approx(200)


def test_a_micro_batch_counts_evenly_over_its_time_and_gaps_count_nothing() -> None:
    tally = Tally.of_batches([Batch(10.0, 2.0, 200), Batch(13.0, 1.0, 50)])
    assert [tally.at(moment) for moment in (9, 10, 11, 12, 12.5, 13.5, 20)] == [0, 0, 100, 200, 200, 225, 250]


def test_a_second_without_records_is_a_zero_and_counts() -> None:
    tally = Tally.of_batches([Batch(0.0, 1.0, 100)])
    assert median_per_second([tally], 0.0, 5.0) == 0


def test_a_reader_is_warm_once_it_gets_no_faster() -> None:
    def batches(*records: int) -> list[Batch]:
        return [Batch(float(second), 1.0, count) for second, count in enumerate(records)]

    assert steady_rate([]) is None
    assert steady_rate(batches(100, 100, 100)) is None  # too short to tell
    assert steady_rate(batches(100, 200, 300, 400)) is None
    assert steady_rate(batches(100, 200, 400, 400, 410, 400)) == pytest.approx(405)


def test_what_a_batch_costs_whatever_its_size_does_not_make_batches_small() -> None:
    def measure(reads_per_second: float, batch: int) -> float:
        return batch / (0.2 + batch / reads_per_second)

    push, pull = (
        rate_in_batches_of(2.0, partial(measure, reads), 500_000) for reads in (12_000_000, 6_000_000)
    )
    assert push == pytest.approx(7_600_000, rel=0.01)  # 2.1 M in the small ones
    assert pull == pytest.approx(4_500_000, rel=0.01)  # 1.8 M
    assert rate_in_batches_of(2.0, lambda batch: float(batch), 7) == 14


def test_text_has_zipfs_frequencies_and_is_the_same_for_the_same_seed() -> None:
    records = list(islice(text(2048), 200))
    assert all(len(record) == 2048 for record in records)
    assert records == list(islice(text(2048), 200))
    assert records != list(islice(text(2048, seed=2), 200))
    counts = Counter(b" ".join(records).split()).most_common()
    assert counts[0][1] > 5 * counts[9][1]
    assert len(counts) > 5000


def test_text_comes_from_a_file_if_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("alpha beta\ngamma")
    found = b" ".join(islice(text(60, file=tmp_path / "words"), 3))
    assert found.startswith(b"alpha beta gamma alpha beta")


def test_every_ad_of_an_event_has_a_campaign() -> None:
    campaigns = campaign_of_ad()
    assert len(set(campaigns.values())) == 100
    assert all(json.loads(event)["ad_id"] in campaigns for event in islice(ad_events(), 100))


@pytest.mark.parametrize("number", range(3, 10))
def test_each_figure_of_the_paper_is_a_sweep_of_one_experiment(number: int) -> None:
    subject = experiment.load(f"figure{number}")
    assert issubclass(subject, Colocation)
    assert set(subject.contenders) == set(subject.ways)
    options = {each.name: each.default for each in subject.parameters}
    assert options["partitions"] == ("4" if number == 6 else "8")
    assert options["record"] == ("2048" if number == 9 else "100")


def test_a_tenth_of_the_filler_passes_the_filter() -> None:
    values = list(islice(filler(100), 1000))
    assert sum(b"penstock" in value for value in values) == 100
    assert {len(value) for value in values} == {100}


def test_the_sustainable_rate_is_the_highest_that_was_sustained_in_every_round() -> None:
    subject = experiment.load("yahoo")
    sustained, sustainable = "sustained_events_per_second", "sustainable_events_per_second"
    samples: list[Sample] = []
    with Rig() as rig:
        yahoo = subject(rig, subject.options_from(None, None, False, {}))
        for contender, rate, number, held in (
            ("kafka", "1", 0, False),
            ("push", "1", 0, True),
            ("push", "2", 0, True),
            ("push", "3", 0, True),
            ("push", "3", 1, False),
        ):
            figures = {sustained: float(rate)} if held else {"behind_seconds": 9.0}
            samples.append(Sample(contender, {"rate": rate}, number, figures))
            yahoo.relate(samples)
    assert [sample.figures.get(sustainable) for sample in samples] == [None, 2.0, 2.0, 2.0, 2.0]


def test_word_counts_are_streams_too_and_others_are_not() -> None:
    subject = experiment.load("spark")
    with Rig() as rig:
        spark = subject(rig, subject.options_from(None, None, False, {"query": "count,word-count"}))
        found = [(variant["query"], variant["trigger"]) for variant in spark.variants()]
    assert found == [("count", "batch"), ("word-count", "batch"), ("word-count", "available-now")]


def test_a_backup_falls_behind_once_in_a_run() -> None:
    subject = experiment.load("catchup")
    with Rig() as rig, pytest.raises(ValueError, match="--repeat"):
        subject(rig, subject.options_from(None, 2, False, {})).variants()
