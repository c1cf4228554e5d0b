"""node.ctl and part.ctl: what a broker tells the readers on its machine.

The broker creates them and stores words; readers map them read-only and load. One class per file serves
both sides, since a store through a read-only mapping is an error anyway.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from penstock.shm import files, layout
from penstock.shm.layout import WORD, PartitionState


class LayoutMismatch(Exception):
    """A control file that is not ours, or of another version of the layout."""


def _check(mapping: mmap.mmap, path: Path, magic: bytes, size: int) -> None:
    if len(mapping) < size or mapping[: len(magic)] != magic:
        raise LayoutMismatch(f"{path} is not a Penstock control file")
    version = int.from_bytes(mapping[8:16], "little")
    if version != layout.VERSION:
        raise LayoutMismatch(
            f"{path} has layout version {version}, this program reads version {layout.VERSION}: "
            "run the same release of Penstock on both sides"
        )


class NodeControl:
    """The broker process: which one it is and that it lives."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._words = files.words_of(mapping)

    @classmethod
    def create(cls, directory: Path, broker_id: int, incarnation: int) -> NodeControl:
        mapping = files.create(directory / layout.NODE_FILE, layout.NODE_SIZE)
        words = files.words_of(mapping)
        words[layout.NODE_VERSION // WORD] = layout.VERSION
        words[layout.NODE_BROKER // WORD] = broker_id
        words[layout.NODE_INCARNATION // WORD] = incarnation
        mapping[: len(layout.NODE_MAGIC)] = layout.NODE_MAGIC
        return cls(mapping)

    @classmethod
    def open(cls, directory: Path) -> NodeControl:
        path = directory / layout.NODE_FILE
        mapping = files.open_existing(path, writable=False)
        _check(mapping, path, layout.NODE_MAGIC, layout.NODE_SIZE)
        return cls(mapping)

    @property
    def broker_id(self) -> int:
        return self._words[layout.NODE_BROKER // WORD]

    @property
    def incarnation(self) -> int:
        return self._words[layout.NODE_INCARNATION // WORD]

    @property
    def heartbeat(self) -> int:
        return self._words[layout.NODE_HEARTBEAT // WORD]

    def beat(self) -> None:
        self._words[layout.NODE_HEARTBEAT // WORD] += 1

    def retire(self) -> None:
        """A clean stop: nothing under this directory is live any more."""
        self._words[layout.NODE_INCARNATION // WORD] = 0


class PartitionControl:
    """One partition's control block. The commit word is the only thing a reader must watch."""

    COMMIT = layout.PART_COMMIT // WORD
    APPEND = layout.PART_APPEND // WORD

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self.words = files.words_of(mapping)
        """For the append path, which stores COMMIT and APPEND without a call each."""

    @classmethod
    def create(cls, directory: Path, topic_id: bytes, partition: int) -> PartitionControl:
        mapping = files.create(directory / layout.PART_FILE, layout.PART_SIZE)
        mapping[layout.PART_TOPIC : layout.PART_TOPIC + 16] = topic_id
        control = cls(mapping)
        control.words[layout.PART_VERSION // WORD] = layout.VERSION
        control.words[layout.PART_PARTITION // WORD] = partition
        control.state = PartitionState.FENCED
        control.oldest_base = control.newest_base = -1
        mapping[: len(layout.PART_MAGIC)] = layout.PART_MAGIC
        return control

    @classmethod
    def open(cls, directory: Path, *, writable: bool = False) -> PartitionControl:
        path = directory / layout.PART_FILE
        mapping = files.open_existing(path, writable=writable)
        _check(mapping, path, layout.PART_MAGIC, layout.PART_SIZE)
        return cls(mapping)

    @property
    def topic_id(self) -> bytes:
        return self._mapping[layout.PART_TOPIC : layout.PART_TOPIC + 16]

    @property
    def partition(self) -> int:
        return self.words[layout.PART_PARTITION // WORD]

    @property
    def incarnation(self) -> int:
        return self.words[layout.PART_INCARNATION // WORD]

    @incarnation.setter
    def incarnation(self, value: int) -> None:
        self.words[layout.PART_INCARNATION // WORD] = value

    @property
    def state(self) -> PartitionState:
        return PartitionState(self.words[layout.PART_STATE // WORD])

    @state.setter
    def state(self, value: PartitionState) -> None:
        self.words[layout.PART_STATE // WORD] = value

    @property
    def leader_epoch(self) -> int:
        return self.words[layout.PART_EPOCH // WORD]

    @leader_epoch.setter
    def leader_epoch(self, value: int) -> None:
        self.words[layout.PART_EPOCH // WORD] = value

    @property
    def promised_epoch(self) -> int:
        return self.words[layout.PART_PROMISED // WORD]

    @promised_epoch.setter
    def promised_epoch(self, value: int) -> None:
        self.words[layout.PART_PROMISED // WORD] = value

    @property
    def committed(self) -> int:
        return self.words[self.COMMIT]

    @property
    def appended(self) -> int:
        return self.words[self.APPEND]

    @property
    def log_start(self) -> int:
        return self.words[layout.PART_LOG_START // WORD]

    @log_start.setter
    def log_start(self, value: int) -> None:
        self.words[layout.PART_LOG_START // WORD] = value

    @property
    def oldest_base(self) -> int:
        return self.words[layout.PART_OLDEST // WORD]

    @oldest_base.setter
    def oldest_base(self, value: int) -> None:
        self.words[layout.PART_OLDEST // WORD] = value

    @property
    def newest_base(self) -> int:
        return self.words[layout.PART_NEWEST // WORD]

    @newest_base.setter
    def newest_base(self, value: int) -> None:
        self.words[layout.PART_NEWEST // WORD] = value
