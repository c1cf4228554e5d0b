"""Fixtures that start real brokers."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent / each) for each in (".", "unit", "faults")]

from harness import BrokerProcess  # noqa: E402

# A shell's background job ignores Ctrl-C and so would all that it starts; tests interrupt what they started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
