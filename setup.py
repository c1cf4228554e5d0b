"""The hot modules as C extensions, made by mypyc from the same source, when PENSTOCK_COMPILE=1.

`make compile` builds them beside the sources, `make wheel` into the wheel; services/penstock/compiled.py says
which they are and when they are used. All other settings are in pyproject.toml.
"""

import json
import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, "services")


class BuildAndNote(build_ext):
    """Leaves the note without which nothing is used, once everything is built."""

    def run(self) -> None:
        if not self.extensions:
            return
        from penstock import compiled

        package = Path("services" if self.inplace else self.build_lib, "penstock")
        note = package / compiled.NOTE
        note.unlink(missing_ok=True)
        super().run()
        note.write_text(json.dumps(compiled.fingerprints(), indent=1))


def extensions() -> list[Extension]:
    if os.environ.get("PENSTOCK_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    from penstock import compiled

    paths = [os.path.relpath(compiled.source(module)) for module in compiled.MODULES]
    return mypycify(paths, opt_level="3")


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildAndNote})
