"""The cluster of docker-compose.yml, with images built here: up once for all tests, down whatever happens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "spark")]

from deployment import Deployment  # noqa: E402


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    deployment = Deployment()
    deployment.down()  # of a run that was killed
    try:
        yield deployment
    finally:
        deployment.keep_logs()
        deployment.down()
