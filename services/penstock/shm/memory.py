"""The memory of one segment: a file on tmpfs, its header words, and its life as recycled memory.

The broker's pool hands these out; a partition log appends to them. The same file serves one partition
after another: `assign` gives it a new owner and a new generation, and readers that still have it mapped
see the generation change. `layout.py` draws the header.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from penstock.shm import files, layout
from penstock.shm.layout import WORD

_GENERATION: Final = layout.SEGMENT_GENERATION // WORD
_PARTITION: Final = layout.SEGMENT_PARTITION // WORD
_BASE: Final = layout.SEGMENT_BASE // WORD
_NEXT: Final = layout.SEGMENT_NEXT // WORD

WRITTEN: Final = layout.SEGMENT_WRITTEN // WORD
MAX_TIME: Final = layout.SEGMENT_MAX_TIME // WORD
FLUSHED: Final = layout.SEGMENT_FLUSHED // WORD


class SegmentMemory:
    """A mapped segment file, writable. `capacity` is what fits behind the header."""

    __slots__ = ("_mapping", "capacity", "holds", "is_open", "path", "readable", "size", "view", "words")

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self._mapping = mapping
        self.size = len(mapping)
        self.capacity = self.size - layout.SEGMENT_HEADER
        self.view = memoryview(mapping)
        self.readable = self.view.toreadonly()
        self.words = files.words_of(mapping)
        self.is_open = False
        """Whether the pool counts it as appended to."""
        self.holds = 0
        """The broker's own uses: responses on their way, write-behind. Never overwritten while held."""

    @classmethod
    def create(cls, path: Path, size: int) -> SegmentMemory:
        return cls(path, files.create(path, size))

    @classmethod
    def open(cls, path: Path) -> SegmentMemory:
        """Take over a segment that an earlier process of this broker left behind."""
        mapping = files.open_existing(path, writable=True)
        if mapping[: len(layout.SEGMENT_MAGIC)] != layout.SEGMENT_MAGIC:
            raise ValueError(f"{path} is not a segment")
        return cls(path, mapping)

    def assign(self, path: Path, topic_id: bytes, partition: int, base_offset: int) -> None:
        """Give the memory to a partition. The generation is raised before a word of the old life goes."""
        words = self.words
        generation = words[_GENERATION]
        words[_GENERATION] = generation | 1
        words[WRITTEN] = 0
        words[_NEXT] = -1
        words[MAX_TIME] = -1
        words[FLUSHED] = 0
        self.view[layout.SEGMENT_TOPIC : layout.SEGMENT_TOPIC + 16] = topic_id
        words[_PARTITION] = partition
        words[_BASE] = base_offset
        self.view[: len(layout.SEGMENT_MAGIC)] = layout.SEGMENT_MAGIC
        words[_GENERATION] = (generation | 1) + 1
        self.move(path)

    def move(self, path: Path) -> None:
        os.rename(self.path, path)
        self.path = path

    @property
    def generation(self) -> int:
        return self.words[_GENERATION]

    @property
    def topic_id(self) -> bytes:
        return bytes(self.view[layout.SEGMENT_TOPIC : layout.SEGMENT_TOPIC + 16])

    @property
    def partition(self) -> int:
        return self.words[_PARTITION]

    @property
    def base_offset(self) -> int:
        return self.words[_BASE]

    @property
    def written(self) -> int:
        return self.words[WRITTEN]

    @property
    def max_time(self) -> int:
        return self.words[MAX_TIME]

    @property
    def flushed(self) -> int:
        return self.words[FLUSHED]

    @property
    def next_base(self) -> int:
        return self.words[_NEXT]

    def seal(self, next_base: int) -> None:
        self.words[_NEXT] = next_base

    def mark_retiring(self) -> None:
        self.words[_GENERATION] |= 1

    def unlink(self) -> None:
        """Take the name away; whoever has it mapped keeps the bytes."""
        self.path.unlink(missing_ok=True)
