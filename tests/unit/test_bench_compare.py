"""Ratios and comparisons: noise is no change, a change is one."""

from __future__ import annotations

from penstock.bench.compare import Change, compare, vanished
from penstock.bench.experiment import Better, Metric, Sample
from penstock.bench.results import Result
from penstock.bench.spread import shares
from penstock.bench.statistics import ratio

METRICS = (Metric("cost", "us", Better.LESS), Metric("rate", "records/s", Better.MORE))


def result(costs: list[float], rates: list[float] | None = None) -> Result:
    made = Result("x", METRICS)
    for number, cost in enumerate(costs):
        figures = {"cost": cost, "rate": rates[number] if rates else 100.0}
        made.samples.append(Sample("ours", {"chunk": "1"}, number, figures))
    return made


def changes(old: Result, new: Result) -> dict[str, Change]:
    return {each.metric: each.change for each in compare(old, new, 0.05)}


def test_the_ratio_of_medians_has_an_interval_around_it() -> None:
    found = ratio([20.0, 21.0, 19.0, 20.5], [10.0, 10.5, 9.5, 10.0])
    assert found is not None
    assert found.low < found.value < found.high
    assert found.low > 1.8
    assert found.high < 2.2


def test_there_is_no_ratio_to_nothing() -> None:
    assert ratio([], [1.0]) is None
    assert ratio([1.0], []) is None
    assert ratio([1.0], [0.0]) is None


def test_noise_is_no_change() -> None:
    assert changes(result([10, 11, 12]), result([10.5, 11.5, 11]))["cost"] is Change.SAME


def test_more_cost_is_slower_and_more_rate_is_faster() -> None:
    found = changes(result([10, 10, 11], [100, 101, 99]), result([20, 21, 20], [200, 210, 205]))
    assert found == {"cost": Change.SLOWER, "rate": Change.FASTER}


def test_what_only_the_old_one_has_is_told() -> None:
    old, new = result([1, 1]), result([1, 1])
    old.samples.append(Sample("theirs", {"chunk": "1"}, 0, {"cost": 5.0}))
    assert vanished(old, new) == [("chunk=1", "theirs")]
    assert vanished(new, old) == []


def test_less_rate_is_slower() -> None:
    old, new = result([1, 1, 1], [100, 101, 99]), result([1, 1, 1], [50, 51, 49])
    assert changes(old, new)["rate"] is Change.SLOWER


def test_one_sample_says_nothing_about_noise() -> None:
    assert changes(result([1], [100]), result([1], [50]))["rate"] is Change.UNKNOWN


def test_two_samples_are_too_few_to_fail_by() -> None:
    assert changes(result([1, 1]), result([2, 2]))["cost"] is Change.UNKNOWN
    assert changes(result([1, 1, 1]), result([2, 2, 2]))["cost"] is Change.SLOWER


def beside(ours: list[float], theirs: list[float]) -> Result:
    made = Result("x", METRICS[:1], baseline="theirs")
    for contender, costs in (("ours", ours), ("theirs", theirs)):
        for number, cost in enumerate(costs):
            made.samples.append(Sample(contender, {"chunk": "1"}, number, {"cost": cost}))
    return made


def test_a_slower_machine_is_no_change_of_what_was_measured_beside_its_baseline() -> None:
    old = beside([10, 11, 10], [40, 41, 40])
    found = {each.contender: each for each in compare(old, beside([20, 22, 20], [80, 82, 80]), 0.05)}
    assert found["ours"].change is Change.SAME
    assert found["ours"].to == "theirs"
    assert found["theirs"].change is Change.SLOWER
    assert found["theirs"].to is None
    worse = {each.contender: each for each in compare(old, beside([20, 22, 20], [40, 41, 40]), 0.05)}
    assert worse["ours"].change is Change.SLOWER
    assert worse["ours"].ratio.value == 2


def test_without_its_baseline_a_figure_is_compared_as_it_is() -> None:
    (ours,) = (
        each
        for each in compare(beside([10, 10, 10], [40, 40, 40]), beside([20, 20, 20], []), 0.05)
        if each.contender == "ours"
    )
    assert (ours.to, ours.change) == (None, Change.SLOWER)


def test_too_few_samples_of_the_baseline_are_too_few() -> None:
    (ours, _) = compare(beside([10, 10, 10], [40, 40, 40]), beside([20, 20, 20], [40]), 0.05)
    assert ours.change is Change.UNKNOWN


def test_what_only_one_of_them_has_is_not_compared() -> None:
    old = Result("x", METRICS)
    assert compare(old, result([10]), 0.05) == []


def test_partitions_are_dealt_out_evenly() -> None:
    assert shares(1, 2) == [[0], [0]]
    assert shares(5, 2) == [[0, 2, 4], [1, 3]]
    dealt = [partition for share in shares(1000, 200) for partition in share]
    assert sorted(dealt) == list(range(1000))
    assert {len(share) for share in shares(1000, 200)} == {5}
