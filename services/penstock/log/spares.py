"""Files of deleted segments, emptied and used again for new ones. Used by the disk thread only.

Under load hundreds of files come and go each second, and ext4 then spends more time looking for an inode
that was not freed just now than the log takes for all the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

KEPT: Final = 4096
"""Empty files: they take inodes and no room. More than retention drops at once at full speed."""

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


class SpareFiles:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._spares: list[Path] = []
        self._taken = 0
        """The last name given out."""
        for leftover in directory.iterdir():
            if leftover.stat().st_size:  # an end came between taking it out of the log and emptying it
                leftover.unlink()
            else:
                self._spares.append(leftover)
                self._taken = max(self._taken, int(leftover.name))

    def create(self, path: Path) -> int:
        """A new empty file, open for writing. Raises OSError when the disk won't."""
        flags = _NEW
        if self._spares:
            os.rename(self._spares[-1], path)
            self._spares.pop()
        else:
            flags |= os.O_TRUNC
        return os.open(path, flags, 0o644)

    def write(self, path: Path, content: bytes) -> None:
        """A small file, whole or not at all."""
        written = self._spares.pop() if self._spares else self._name()
        try:
            # Not truncated once more: to ext4 that is work even when there is nothing.
            with open(os.open(written, _NEW, 0o644), "wb") as file:
                file.write(content)
            os.rename(written, path)
        except OSError:
            written.unlink(missing_ok=True)
            raise

    def _name(self) -> Path:
        self._taken += 1
        return self._directory / str(self._taken)

    def drop(self, path: Path, is_read: Callable[[], bool]) -> None:
        """Delete a file, if it is there.

        It is out of its directory before `is_read` is asked, so that whoever says no can't open it any more;
        what somebody may have open keeps its bytes until that is closed, as with any deleted file.
        """
        spare = self._name()
        try:
            os.rename(path, spare)
        except FileNotFoundError:
            return
        if is_read() or len(self._spares) >= KEPT:
            spare.unlink()
        else:
            os.truncate(spare, 0)
            self._spares.append(spare)
