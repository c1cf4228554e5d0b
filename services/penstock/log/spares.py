"""Files of deleted segments, emptied and used again for new ones. Used by the disk thread only.

Under load hundreds of files come and go each second, and ext4 then spends more time looking for an inode
that was not freed just now than the log takes for all the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

KEPT: Final = 256
"""Empty files, so that they take inodes and no room."""


class SpareFiles:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.iterdir():
            leftover.unlink()
        self._directory = directory
        self._spares: list[Path] = []
        self._taken = 0

    def create(self, path: Path) -> int:
        """A new empty file, open for writing. Raises OSError when the disk won't."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        if self._spares:
            self._spares[-1].rename(path)
            self._spares.pop()
        else:
            flags |= os.O_TRUNC
        return os.open(path, flags, 0o644)

    def write(self, path: Path, content: bytes) -> None:
        """A small file, whole or not at all."""
        temporary = path.with_suffix(".tmp")
        with open(self.create(temporary), "wb") as file:
            file.write(content)
        temporary.rename(path)

    def drop(self, path: Path, is_read: Callable[[], bool]) -> None:
        """Delete a file, if it is there.

        It is out of its directory before `is_read` is asked, so that whoever says no can't open it any more;
        what somebody may have open keeps its bytes until that is closed, as with any deleted file.
        """
        spare = self._directory / str(self._taken)
        self._taken += 1
        try:
            path.rename(spare)
        except FileNotFoundError:
            return
        if is_read() or len(self._spares) >= KEPT:
            spare.unlink()
        else:
            os.truncate(spare, 0)
            self._spares.append(spare)
