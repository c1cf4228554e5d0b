"""Files in shared memory: made whole or not at all, mapped, never shrunk.

A mapped page that isn't there is SIGBUS for whoever touches it, so a file gets all its memory under a
temporary name (no room is an OSError here, in the broker) and is renamed into place.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def create(path: Path, size: int) -> mmap.mmap:
    """Make `path` with `size` zeroed bytes, allocated, and map it for writing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # of a killed process with our pid: in a container that is always 1
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, size)
        mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return mapping


def open_existing(path: Path, *, writable: bool) -> mmap.mmap:
    """Map an existing file whole."""
    descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            raise ValueError(f"{path} is empty")
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(descriptor, size, mmap.MAP_SHARED, protection)
    finally:
        os.close(descriptor)


def words_of(mapping: mmap.mmap) -> memoryview:
    """The mapping as aligned signed 8-byte words: an item is one load or one store."""
    whole = memoryview(mapping)
    return whole[: len(whole) // 8 * 8].cast("q")
