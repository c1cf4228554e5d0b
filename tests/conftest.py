"""Fixtures that start real brokers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent / each) for each in (".", "unit", "faults")]

from harness import BrokerProcess  # noqa: E402


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of the test's own, running."""
    with BrokerProcess(tmp_path / "broker") as process:
        yield process.start()


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests of a module that don't mind each other."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process.start()
