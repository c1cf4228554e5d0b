"""Fixtures that several unit tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from log_rig import LogRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LogRig]:
    """A log store of the test's own, not opened yet."""
    rig = LogRig(tmp_path / "data")
    yield rig
    rig.close()
