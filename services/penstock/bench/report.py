"""Results as Markdown: tables of medians and pictures, put between the marks of a document.

Called by `penstock bench report`. A document says where a result goes with a line `<!-- bench NAME -->` and
where it ends with `<!-- end -->`; everything between is written anew, the prose around it stays.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from penstock.bench import experiment, results
from penstock.bench.experiment import Experiment, Goal
from penstock.bench.results import Result, UnreadableResult, Verdict

_MARK: Final = re.compile(r"(<!-- bench ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

_QUIET: Final = 0.1
"""CPUs that are busier than this before a run have something else to do."""


class Found(NamedTuple):
    path: Path
    result: Result


def newest(directory: Path) -> dict[str, Found]:
    """The last result of each experiment in a directory that has samples."""
    found: dict[str, Found] = {}
    for path in sorted(directory.glob("*.json"), key=lambda each: each.stat().st_mtime):
        try:
            result = results.read(path)
        except UnreadableResult:
            continue
        if result.samples and result.experiment in experiment.names():
            found[result.experiment] = Found(path, result)
    return found


def fill(text: str, sections: Mapping[str, str]) -> str:
    """A document with the sections that there are; others stay as they were."""

    def put(match: re.Match[str]) -> str:
        section = sections.get(match[2])
        return match[0] if section is None else f"{match[1]}{section}{match[3]}"

    return _MARK.sub(put, text)


def section(found: Found, pictures: Sequence[str]) -> str:
    """What was run and where, its pictures, a table for each figure that matters, and the goals."""
    result, subject = found.result, experiment.load(found.result.experiment)
    parts = [f"`{command(result, subject)}`: {_where(result)}"]
    parts += [f"![{result.experiment}]({picture})" for picture in pictures]
    parts += [table for metric in result.metrics if (table := _table(result, metric.name))]
    parts += [f"Missing: {contender}: {why}" for contender, why in result.missing.items()]
    parts += [f"Failed: {' '.join(failure.split())[:300]}" for failure in result.failures]
    goals = _goals(result, subject)
    if goals:
        parts.append("\n".join(goals))
    return "\n" + "\n\n".join(parts) + "\n\n"


def goals(found: Mapping[str, Found]) -> str:
    """Every goal of every experiment, run or not, with the worst of its variants: a line each."""
    lines = ["| experiment | goal | at most | worst | met |", "|---" * 5 + "|"]
    for name in experiment.names():
        for goal in experiment.load(name).goals:
            verdicts = found[name].result.judge([goal]) if name in found else []
            worst = max((verdict.value for verdict in verdicts if verdict.value is not None), default=None)
            within = f", {results.label(goal.within)}" if goal.within else ""
            lines.append(
                f"| {name} | {goal}{within} | {figure(goal.limit)} "
                f"| {'-' if worst is None else figure(worst)} | {_state(name, goal, verdicts)} |"
            )
    return "\n" + "\n".join(lines) + "\n\n"


def _state(name: str, goal: Goal, verdicts: Sequence[Verdict]) -> str:
    """In how many variants it was met; of one that no variant was run for, how to run it."""
    if not verdicts:
        return f"not run: `{command_of(name, goal)}`"
    met = sum(verdict.met is True for verdict in verdicts)
    unknown = sum(verdict.met is None for verdict in verdicts)
    judged = len(verdicts) - unknown
    if not judged:
        return "not judged"
    state = "yes" if met == judged else f"{met} of {judged}"
    return f"{state}, {unknown} not judged" if unknown else state


def command_of(name: str, goal: Goal) -> str:
    """The command that measures a goal: with whatever the experiment would not run by itself."""
    subject = experiment.load(name)
    usual = subject.options_from(None, None, False, {})
    other = [
        f"--{option.replace('_', '-')} {text}"
        for option, text in goal.within.items()
        if option in usual.values and text not in usual.texts(option)
    ]
    return " ".join([*_words(name), *other])


def _words(name: str) -> list[str]:
    return ["penstock bench", f"figure {name[6:]}" if name.startswith("figure") else name]


def command(result: Result, subject: type[Experiment]) -> str:
    """The command that gives such a result."""
    words = _words(result.experiment)
    options = result.options
    quick = bool(options.get("quick"))
    usual = subject.options_from(None, None, quick, {})
    if quick:
        words.append("--quick")
    if options.get("seconds") != usual.seconds:
        words.append(f"-s {options['seconds']:g}")
    if options.get("repeat") != usual.repeat:
        words.append(f"-r {options['repeat']}")
    if options.get("contenders"):
        words.append(f"--contenders '{','.join(options['contenders'])}'")
    words += [
        f"--{option.replace('_', '-')} {text}"
        for option, text in options.get("values", {}).items()
        if usual.values.get(option) != text
    ]
    return " ".join(words)


def copy_pictures(found: Found, directory: Path) -> list[Path]:
    """A result's pictures, under names that stay the same from run to run."""
    directory.mkdir(parents=True, exist_ok=True)
    copied = []
    for picture in sorted(found.path.parent.glob(f"{found.path.stem}*.png")):
        target = directory / picture.name.replace(found.path.stem, found.result.experiment)
        shutil.copyfile(picture, target)
        copied.append(target)
    return copied


def _where(result: Result) -> str:
    machine = result.machine
    memory = machine.get("memory_bytes", 0) / (1 << 30)
    cut = "" if result.complete else "; **cut short**"
    return (
        f"{machine.get('cpus')} CPUs ({machine.get('processor')}), {memory:.0f} GiB, commit {result.commit}"
        f" ({result.versions.get('hot_path', 'interpreted')}), "
        f"{result.started}{_took(result)}{_busy(result)}{cut}"
    )


def _took(result: Result) -> str:
    """Of a result that says so; those from before don't."""
    seconds = round(result.took_seconds)
    return f", took {seconds // 60}:{seconds % 60:02d}" if seconds else ""


def _busy(result: Result) -> str:
    """Said only where something else ran."""
    share = result.machine.get("busy_before", 0.0)
    return f"; **CPUs {share:.0%} busy before**" if share > _QUIET else ""


def _table(result: Result, metric: str) -> str:
    """Variants down, contenders across: median [lowest-highest sample] (ratio to the baseline)."""
    values = result.by_key(metric)
    contenders = list(dict.fromkeys(contender for _, contender in values))
    variants = list(dict.fromkeys(variant for variant, _ in values))
    if not values:
        return ""
    unit = next(each.unit for each in result.metrics if each.name == metric)
    base = result.baseline
    ratios = result.ratios(metric, base) if base in contenders else {}
    head = f"| {metric.replace('_', ' ')} ({unit}) | " + " | ".join(contenders) + " |"
    lines = [head, "|---" * (len(contenders) + 1) + "|"]
    for variant in variants:
        cells = []
        for contender in contenders:
            found = values.get((variant, contender))
            ratio = ratios.get((variant, contender))
            beside = f" ({ratio.value:.2g}x)" if ratio else ""
            cells.append(f"{figure(median(found))}{_span(found)}{beside}" if found else "-")
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _span(values: Sequence[float]) -> str:
    """The lowest and the highest of several samples; with none if they look the same."""
    low, high = figure(min(values)), figure(max(values))
    if low == high:
        return ""
    shared = low[-2:] if low[-2:] == high[-2:] and low[-1].isalpha() else ""
    return f" [{low.removesuffix(shared)}-{high.removesuffix(shared)}]"


def _goals(result: Result, subject: type[Experiment]) -> list[str]:
    lines = []
    for verdict in result.judge(subject.goals):
        goal = verdict.goal
        state = "not judged" if verdict.met is None else "met" if verdict.met else "**missed**"
        value = "-" if verdict.value is None else figure(verdict.value)
        lines.append(f"- goal {state}: {goal} at most {figure(goal.limit)}, {verdict.variant}: {value}")
    return lines


def figure(value: float) -> str:
    """Three digits that matter, thousands and millions by their letter."""
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
