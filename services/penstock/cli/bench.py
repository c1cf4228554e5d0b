"""`penstock bench`: run experiments, list them, compare their results."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli import benchprint, benchrun
from penstock.cli.options import AsJson
from penstock.cli.terminal import fail, print_json, print_table

if TYPE_CHECKING:
    from penstock.bench.experiment import Experiment
    from penstock.bench.results import Result

Seconds = Annotated[float | None, typer.Option("--seconds", "-s", min=0.1, help="Length of one sample.")]
Repeat = Annotated[int | None, typer.Option("--repeat", "--rounds", "-r", min=1, help="Samples of each.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer and shorter samples: for a first look.")]
Contenders = Annotated[str, typer.Option(help="Only these, separated by commas.", show_default="all")]
Pin = Annotated[bool, typer.Option(help="Broker on the first CPU, load on the others.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="The result; artifacts/bench/... without it.")]


class Experiments(TyperGroup):
    """Every file in penstock/bench/experiments is a command; none is imported before it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        from penstock.bench import experiment

        return [*super().list_commands(ctx), *experiment.names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or _experiment_command(cmd_name)


class Figures(TyperGroup):
    """`penstock bench figure 4` is the experiment figure4."""

    def list_commands(self, ctx: Any) -> list[str]:
        from penstock.bench import experiment

        return [name.removeprefix("figure") for name in experiment.names() if name.startswith("figure")]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = _experiment_command(f"figure{cmd_name}")
        if found is not None:
            found.name = cmd_name
        return found


def _experiment_command(name: str) -> Any:
    from penstock.bench import experiment

    if name not in experiment.names():
        return None
    one = typer.Typer(add_completion=False)
    one.command(name)(_command(name, experiment.load(name)))
    return typer.main.get_command(one)


app = typer.Typer(
    cls=Experiments,
    no_args_is_help=True,
    help="Measure: each experiment against what it should be measured against, in one run.",
)

figures = typer.Typer(cls=Figures, no_args_is_help=True, help="Figures 3 to 9 of the paper, by their number.")
app.add_typer(figures, name="figure")


@figures.callback()
def _figures() -> None:
    """A group needs one, and this is it."""


def _command(name: str, subject: type[Experiment]) -> Callable[..., None]:
    """The command of one experiment: the common options and its own parameters."""

    def command(
        seconds: float | None,
        repeat: int | None,
        quick: bool,
        contenders: str,
        pin: bool,
        out: Path | None,
        as_json: bool,
        **own: str,
    ) -> None:
        result = benchrun.run(name, subject, seconds, repeat, quick, own, contenders, pin, out)
        if as_json:
            print_json(result.document())
            for failure in result.failures:
                typer.echo(f"failed: {failure}", err=True)
        else:
            benchprint.print_result(result, subject)

    common: list[tuple[str, Any, Any]] = [
        ("seconds", Seconds, None),
        ("repeat", Repeat, None),
        ("quick", Quick, False),
        ("contenders", Contenders, ""),
        ("pin", Pin, True),
        ("out", Out, None),
        ("as_json", AsJson, False),
    ]
    own = [
        (
            parameter.name,
            Annotated[str | None, typer.Option(help=parameter.about, show_default=parameter.default)],
            None,
        )
        for parameter in subject.parameters
    ]
    everything = own + common
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for each, annotation, default in everything
        ]
    )
    command.__annotations__ = {each: annotation for each, annotation, _ in everything}
    about = inspect.getdoc(inspect.getmodule(subject)) or subject.about
    command.__doc__ = f"{about}\n\nExample: penstock bench {name} --quick --json"
    return command


@app.command("list")
def list_experiments(as_json: AsJson = False) -> None:
    """Say which experiments there are.

    Example: penstock bench list
    """
    from penstock.bench import experiment

    subjects = {name: experiment.load(name) for name in experiment.names()}
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "about": subject.about,
                    "contenders": subject.contenders,
                    "parameters": {each.name: each.default for each in subject.parameters},
                }
                for name, subject in subjects.items()
            ]
        )
        return
    print_table(
        "Experiments",
        ("name", "what", "contenders"),
        [(name, subject.about, ", ".join(subject.contenders)) for name, subject in subjects.items()],
    )


@app.command("all")
def run_all(
    only: Annotated[str, typer.Option(help="Experiments, separated by commas; all without it.")] = "",
    quick: Quick = False,
    repeat: Repeat = None,
    directory: Annotated[
        Path | None, typer.Option("--out", "-o", help="A directory for the results; artifacts/bench/...")
    ] = None,
) -> None:
    """Run every experiment, each in a process of its own, one after the other.

    Many take one or two samples, so that all fit into an hour or so; `--repeat 3` is what `compare` needs.

    Example: penstock bench all --quick
    """
    from penstock.bench import experiment, results

    everything = [name for name in experiment.names() if not quick or experiment.load(name).in_quick_run]
    names = [name for name in only.split(",") if name] or everything
    unknown = set(names) - set(experiment.names())
    if unknown:
        fail(f"--only: there is no experiment {', '.join(sorted(unknown))}; `penstock bench list` names them")
    directory = directory or results.DIRECTORY / time.strftime("%Y%m%d-%H%M%S")
    benchrun.fetch_kafka(names)
    failed = benchrun.run_each(names, quick, repeat, directory)
    gaps = benchrun.gaps(names, directory)
    whole = sum(name not in gaps and name not in failed for name in names)
    typer.echo(f"{whole} of {len(names)} experiments are whole; results are in {directory}")
    for name, told in gaps.items():
        for line in told:
            typer.echo(f"{name}: {' '.join(line.split())[:300]}")
    failed += [name for name, told in gaps.items() if "no samples" in told and name not in failed]
    if failed:
        fail(f"failed: {', '.join(failed)}")


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Where results are.")],
    into: Annotated[Path | None, typer.Option(help="A document with marks to fill in; else printed.")] = None,
) -> None:
    """Write results as Markdown: the newest of each experiment in a directory.

    A document marks the place with <!-- bench NAME --> and <!-- end -->; its pictures go beside it. All goals
    together go to <!-- bench goals -->.

    Example: penstock bench report artifacts/bench/20261117-040500 --into docs/benchmarks.md
    """
    from penstock.bench import report as markdown

    found = markdown.newest(directory)
    if not found:
        fail(f"{directory} has no results of `penstock bench`")
    sections = {"goals": markdown.goals(found)}
    for name, each in found.items():
        pictures: list[str] = []
        if into is not None:
            copied = markdown.copy_pictures(each, into.with_suffix(""))
            pictures = [str(path.relative_to(into.parent)) for path in copied]
        sections[name] = markdown.section(each, pictures)
    if into is None:
        typer.echo("\n".join(f"## {name}\n{text}" for name, text in sections.items()))
    else:
        into.write_text(markdown.fill(into.read_text(), sections))


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(help="An earlier result, or a directory of them.")],
    new: Annotated[Path, typer.Argument(help="A later one of the same experiment, or a directory.")],
    tolerance: Annotated[float, typer.Option(min=0, help="Changes up to this share don't count.")] = 0.05,
    as_json: AsJson = False,
) -> None:
    """Say what became slower or faster, beyond noise; exit code 1 if anything became slower or is gone.

    Contenders are compared by their ratio to the experiment's baseline, which was measured beside them; with
    fewer than three samples on a side nothing is said to have changed.

    Example: penstock bench compare artifacts/bench/before.json artifacts/bench/after.json
    """
    from dataclasses import asdict

    from penstock.bench.compare import Change, vanished
    from penstock.bench.compare import compare as differences

    pairs = _pairs(old, new)
    found = {before.experiment: differences(before, after, tolerance) for before, after in pairs}
    gone = False
    for before, after in pairs:
        if dict(before.options) != dict(after.options):
            typer.echo(f"{before.experiment}: the two were run with other options", err=True)
        for variant, contender in vanished(before, after):
            typer.echo(f"{before.experiment}: {contender} at {variant} is in the old one only", err=True)
            gone = True
    if not any(found.values()):
        fail("the two have no figure in common", code=2)
    if as_json:
        print_json(
            [
                {"experiment": name, **asdict(each), "ratio": each.ratio._asdict()}
                for name, changes in found.items()
                for each in changes
            ]
        )
    else:
        for name, changes in found.items():
            benchprint.print_changes(name, changes)
    if gone or any(each.change is Change.SLOWER for changes in found.values() for each in changes):
        raise typer.Exit(1)


def _pairs(old: Path, new: Path) -> list[tuple[Result, Result]]:
    """What is to be compared: two results, or those that two directories both have."""
    from penstock.bench import report, results

    if old.is_dir() and new.is_dir():
        before, after = report.newest(old), report.newest(new)
        return [(before[name].result, after[name].result) for name in before if name in after]
    try:
        pair = results.read(old), results.read(new)
    except results.UnreadableResult as error:
        fail(str(error), code=2)
    if pair[0].experiment != pair[1].experiment:
        fail(f"{old} is about {pair[0].experiment}, {new} about {pair[1].experiment}", code=2)
    return [pair]


@app.command()
def plot(
    paths: Annotated[list[Path], typer.Argument(metavar="RESULT.json...", help="Results of this bench.")],
) -> None:
    """Draw results anew; a run draws its own. The pictures lie beside the results.

    Example: penstock bench plot artifacts/bench/ingest-20261117-040500.json
    """
    from penstock.bench import plots, results

    for path in paths:
        try:
            for written in benchrun.draw(results.read(path), path):
                typer.echo(str(written))
        except (results.UnreadableResult, plots.CannotPlot) as error:
            fail(f"{path}: {error}")
