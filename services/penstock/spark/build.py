"""Compiles the Spark connector: `python -m penstock.spark.build`.

Needs javac and an installed pyspark, whose jars are all that the connector is compiled against. Run by
`make` and by the wheel's build; a second run without changed sources does nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parent
JAR: Final = PACKAGE / "jars" / "penstock-spark.jar"
SOURCES: Final = PACKAGE.parents[2] / "spark-jobs" / "connector" / "src" / "main"
FINGERPRINT: Final = "META-INF/penstock.sources"
JAVA_RELEASE: Final = "17"
# A fixed time stamp, so that the same sources give the same jar.
EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class BuildError(Exception):
    """The jar can't be built; the message says what to do."""


def spark_jars() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise BuildError("pyspark is not installed: pip install 'penstock[spark]'")
    # Under spark-submit pyspark comes from a zip file, and its jars lie in Spark's home.
    home = os.environ.get("SPARK_HOME")
    for place in (Path(spec.origin).parent, *([Path(home)] if home else [])):
        if (place / "jars").is_dir():
            return place / "jars"
    raise BuildError(f"no jars beside {spec.origin}: is SPARK_HOME where Spark is?")


def fingerprint(files: Iterable[Path], jars: Path) -> str:
    """Names the sources and the Spark they are compiled against."""
    digest = hashlib.sha256()
    digest.update("\n".join(sorted(jar.name for jar in jars.glob("spark-*.jar"))).encode())
    for file in files:
        digest.update(str(file.relative_to(SOURCES)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def built_from(jar: Path) -> str | None:
    """The fingerprint inside a jar, if there is one."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.read(FINGERPRINT).decode()
    except (OSError, KeyError, zipfile.BadZipFile):
        return None


def build(*, force: bool = False) -> Path:
    """Builds the jar if its sources changed, and returns where it is."""
    if not SOURCES.is_dir():
        if JAR.is_file():
            return JAR
        raise BuildError(f"neither the connector's sources ({SOURCES}) nor its jar ({JAR}) are here")
    jars = spark_jars()
    sources = sorted((SOURCES / "java").rglob("*.java"))
    resources = sorted(path for path in (SOURCES / "resources").rglob("*") if path.is_file())
    wanted = fingerprint([*sources, *resources], jars)
    if not force and built_from(JAR) == wanted:
        return JAR
    javac = shutil.which("javac")
    if javac is None:
        raise BuildError(
            "javac is not on the PATH: install a JDK, 17 or later (Debian: openjdk-17-jdk-headless)"
        )
    with tempfile.TemporaryDirectory() as scratch:
        classes = Path(scratch)
        command = [
            javac,
            "--release",
            JAVA_RELEASE,
            "-proc:none",
            "-nowarn",
            "-cp",
            f"{jars}/*",
            "-d",
            str(classes),
        ]
        done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"javac failed:\n{done.stdout}{done.stderr}")
        pack(classes, resources, wanted)
    return JAR


def pack(classes: Path, resources: Iterable[Path], wanted: str) -> None:
    """Written under another name and renamed: a Spark that runs keeps the jar it has opened."""
    entries = {str(path.relative_to(classes)): path for path in classes.rglob("*.class")}
    entries |= {str(path.relative_to(SOURCES / "resources")): path for path in resources}
    JAR.parent.mkdir(exist_ok=True)
    draft = JAR.with_suffix(".tmp")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", EPOCH), "Manifest-Version: 1.0\n")
        archive.writestr(zipfile.ZipInfo(FINGERPRINT, EPOCH), wanted)
        for name, path in sorted(entries.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
    draft.replace(JAR)


def main() -> int:
    try:
        print(build(force="--force" in sys.argv[1:]))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
