"""A segment as a reader sees it: mapped read-only, checked, and checked again.

The counterpart of `memory.SegmentMemory`, which the broker writes; `layout.py` has the rules between them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.shm import files, layout
from penstock.shm.layout import WORD
from penstock.shm.places import Place

DATA: Final = layout.SEGMENT_HEADER
_GENERATION: Final = layout.SEGMENT_GENERATION // WORD
_WRITTEN: Final = layout.SEGMENT_WRITTEN // WORD
_NEXT: Final = layout.SEGMENT_NEXT // WORD
_MAX_TIME: Final = layout.SEGMENT_MAX_TIME // WORD

_SAME_BYTES: Final = (0, 1)
"""How far the generation may have moved since the mapping: not at all, or to retiring."""


class MappedSegment:
    """A segment mapped read-only, with the generation that it had then."""

    __slots__ = ("base", "capacity", "generation", "view", "words")

    def __init__(self, view: memoryview, words: memoryview, base: int) -> None:
        self.view = view
        self.words = words
        self.base = base
        self.generation: int = words[_GENERATION]
        self.capacity = len(view) - DATA

    @classmethod
    def open(cls, directory: Path, place: Place, base: int) -> MappedSegment | None:
        """Map it and make sure that it is this partition's; None if it isn't, or isn't there any more."""
        try:
            mapping = files.open_existing(directory / layout.segment_name(base), writable=False)
        except (FileNotFoundError, ValueError):
            return None
        if len(mapping) < DATA:
            return None
        segment = cls(memoryview(mapping), files.words_of(mapping), base)
        words = segment.words
        fits = (
            segment.generation % 2 == 0
            and mapping[: len(layout.SEGMENT_MAGIC)] == layout.SEGMENT_MAGIC
            and mapping[layout.SEGMENT_TOPIC : layout.SEGMENT_TOPIC + 16] == place.topic_id
            and words[layout.SEGMENT_PARTITION // WORD] == place.partition
            and words[layout.SEGMENT_BASE // WORD] == base
            # Last: all of the above was read from one life of this memory, and the pin came before it.
            and words[_GENERATION] == segment.generation
        )
        return segment if fits else None

    @property
    def intact(self) -> bool:
        """Whatever was read from the batches before this call is what the broker committed."""
        return self.words[_GENERATION] - self.generation in _SAME_BYTES

    @property
    def retired(self) -> bool:
        """The broker has done with it, or already given it to somebody else."""
        generation: int = self.words[_GENERATION]
        return generation != self.generation

    @property
    def max_time(self) -> int:
        value: int = self.words[_MAX_TIME]
        return value

    def extent(self, position: int) -> tuple[int, int] | None:
        """(written, next base) for a reader that has come to `position`; None if the memory went away."""
        # In the reverse order of `SegmentMemory.assign`, which clears `written` first and the rest after:
        # a `written` that is still good vouches for the `next base` loaded before it.
        next_base: int = self.words[_NEXT]
        written: int = self.words[_WRITTEN]
        plausible = position <= written <= self.capacity
        if not self.retired:
            if not plausible:
                raise ValueError(f"{written} bytes written of {self.capacity}, reader at {position}")
        elif not plausible or written == 0 or not self.intact:
            return None
        return written, next_base
