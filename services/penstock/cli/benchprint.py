"""A result at the terminal: medians, ratios and how its goals came out. For `penstock bench`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.terminal import print_table

if TYPE_CHECKING:
    from penstock.bench.compare import Difference
    from penstock.bench.experiment import Experiment
    from penstock.bench.results import Result


def interval(ratio: Any) -> str:
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def print_changes(experiment: str, changes: Sequence[Difference]) -> None:
    from penstock.bench.compare import Change

    rows = [
        (
            each.change.value,
            each.variant,
            f"{each.contender} / {each.to}" if each.to else each.contender,
            each.metric,
            interval(each.ratio),
        )
        for each in changes
    ]
    print_table(f"{experiment}: new / old", ("change", "variant", "contender", "figure", "ratio"), rows)
    unknown = sum(each.change is Change.UNKNOWN for each in changes)
    if unknown:
        typer.echo(
            f"{experiment}: {unknown} of {len(changes)} figures have too few samples to tell a change from "
            f"noise: run both with --repeat 3 or more"
        )


def print_result(result: Result, subject: type[Experiment]) -> None:
    medians = result.medians()
    columns = ("variant", "contender", *(f"{metric.name} ({metric.unit})" for metric in result.metrics))
    rows = [
        (variant, contender, *(_figure(figures.get(metric.name)) for metric in result.metrics))
        for (variant, contender), figures in medians.items()
    ]
    print_table(f"{result.experiment}: medians", columns, rows)
    for contender, why in result.missing.items():
        typer.echo(f"missing: {contender}: {why}")
    for failure in result.failures:
        typer.echo(f"failed: {failure}")
    if result.baseline is not None:
        ratios = [
            (variant, contender, metric.name, interval(found))
            for metric in result.metrics
            for (variant, contender), found in result.ratios(metric.name, result.baseline).items()
        ]
        if ratios:
            print_table(
                f"divided by {result.baseline}", ("variant", "contender", "figure", "ratio (95 %)"), ratios
            )
    for verdict in result.judge(subject.goals):
        goal = verdict.goal
        state = "not judged" if verdict.met is None else "met" if verdict.met else "NOT met"
        typer.echo(f"goal {state}: {goal} <= {goal.limit:.3g} at {verdict.variant}: {_figure(verdict.value)}")


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
