"""Compiled modules: used only while they are what their sources say, and never by surprise."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import compiled

PACKAGE = Path(compiled.__file__).parent
SAY = "import penstock, penstock.wire.batch as batch; print(penstock.COMPILED, batch.__file__)"


def loaded(package_parent: Path, **environment: str) -> tuple[bool, str]:
    """Whether a new process takes the extensions, and the file of a module that it loads."""
    inherited = {name: value for name, value in os.environ.items() if name != "PENSTOCK_PURE"}
    answer = subprocess.run(
        [sys.executable, "-c", SAY],
        env={**inherited, "PYTHONPATH": str(package_parent), **environment},
        cwd=package_parent,
        capture_output=True,
        text=True,
        check=True,
    )
    took, file = answer.stdout.split()
    return took == "True", file


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, extensions and all, whose sources may be edited."""
    if not (PACKAGE / compiled.NOTE).exists():
        pytest.skip("nothing is compiled here: make compile")
    for shared in PACKAGE.parent.glob("*__mypyc*.so"):
        shutil.copy(shared, tmp_path)
    shutil.copytree(PACKAGE, tmp_path / "penstock", ignore=shutil.ignore_patterns("jars", "__pycache__"))
    return tmp_path


def test_an_extension_is_taken_while_its_source_is_unchanged(copy: Path) -> None:
    took, file = loaded(copy)
    assert took
    assert file.endswith(".so")


@pytest.mark.parametrize("module", ["penstock.wire.batch", "penstock.log.partition"])
def test_an_edited_source_is_never_shadowed_by_an_old_extension(copy: Path, module: str) -> None:
    edited = copy.joinpath(*module.split(".")).with_suffix(".py")
    edited.write_text(edited.read_text() + "\n# edited\n")
    took, file = loaded(copy)
    assert not took
    assert file == str(copy / "penstock" / "wire" / "batch.py")


def test_everything_runs_as_python_when_asked_to(copy: Path) -> None:
    took, file = loaded(copy, PENSTOCK_PURE="1")
    assert not took
    assert file.endswith(".py")


def test_a_note_without_extensions_means_nothing(copy: Path) -> None:
    for extension in copy.rglob("*.so"):
        extension.unlink()
    took, file = loaded(copy)
    assert not took
    assert file.endswith(".py")


def test_every_module_that_is_compiled_has_a_source() -> None:
    assert all(compiled.source(module).exists() for module in compiled.MODULES)


def test_nothing_compiled_is_suspended_while_it_handles_an_exception() -> None:
    # mypyc leaves the exception in the thread's state until the coroutine is resumed: whatever else fails
    # meanwhile, anywhere in the process, is told as if it came of that.
    suspended = [
        f"{module}:{inside.lineno}"
        for module in compiled.MODULES
        for handler in ast.walk(ast.parse(compiled.source(module).read_text()))
        if isinstance(handler, ast.ExceptHandler)
        for inside in ast.walk(handler)
        if isinstance(inside, ast.Await | ast.Yield | ast.YieldFrom | ast.AsyncFor | ast.AsyncWith)
    ]
    assert suspended == []
