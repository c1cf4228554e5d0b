"""Cursor files: what a reader process tells the broker, and how the broker knows that it lives.

A reader makes one file per process, keeps a POSIX lock on its first byte, and uses one slot per
partition it follows. The broker reads the files, counts a reader as alive while it can't take that lock,
and removes the files of the dead. Nothing here trusts pids or clocks, which mean nothing across
containers; and the broker doesn't map the files, because a reader that shrinks its own would be the
broker's SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.shm import files, layout
from penstock.shm.layout import WORD, SlotState

_STATE = layout.SLOT_STATE // WORD
_PINNED = layout.SLOT_PINNED // WORD
_FINISHED = layout.SLOT_FINISHED // WORD
_PUSH_RECORDS = layout.SLOT_PUSH_RECORDS // WORD
_PUSH_BYTES = layout.SLOT_PUSH_BYTES // WORD
_PULL_RECORDS = layout.SLOT_PULL_RECORDS // WORD
_MOST_SLOTS = 1 << 16


def _slot_position(index: int) -> int:
    return layout.CURSOR_HEADER + index * layout.CURSOR_SLOT_SIZE


class Slot:
    """A reader's place in one partition, published. Words are stored, never packed."""

    def __init__(self, mapping: mmap.mmap, words: memoryview, index: int) -> None:
        self._mapping = mapping
        self._position = _slot_position(index)
        start = self._position // WORD
        self._words = words[start : start + layout.CURSOR_SLOT_SIZE // WORD]

    @property
    def is_free(self) -> bool:
        return self._words[_STATE] == SlotState.FREE

    def take(self, topic_id: bytes, partition: int, offset: int) -> None:
        words = self._words
        start = self._position + layout.SLOT_TOPIC
        self._mapping[start : start + 16] = topic_id
        words[layout.SLOT_PARTITION // WORD] = partition
        words[_PINNED] = -1
        words[_FINISHED] = offset
        words[_STATE] = SlotState.PUSH  # the counts go on from the slot's last user

    def pin(self, base_offset: int) -> None:
        self._words[_PINNED] = base_offset

    def unpin(self) -> None:
        self._words[_PINNED] = -1

    def finish(self, offset: int, records: int, size: int) -> None:
        """Everything below `offset` is done with; `records` and `size` came by push since the last call."""
        words = self._words
        words[_PUSH_RECORDS] += records
        words[_PUSH_BYTES] += size
        words[_FINISHED] = offset

    def free(self) -> None:
        self._words[_PINNED] = -1
        self._words[_STATE] = SlotState.FREE


class CursorFile:
    """The reader's side: one locked file for the life of the process (or of this object)."""

    def __init__(self, broker_directory: Path, label: str, slots: int = layout.CURSOR_DEFAULT_SLOTS) -> None:
        directory = broker_directory / layout.CURSOR_DIR
        self.path = directory / f"{uuid.uuid4().hex}{layout.CURSOR_SUFFIX}"
        # Locked under a name the broker doesn't look at: it must never see an unlocked, living reader.
        temporary = self.path.with_suffix(".new")
        size = _slot_position(slots)
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.posix_fallocate(self._descriptor, 0, size)
            self._mapping = mmap.mmap(self._descriptor, size)
            self._words = files.words_of(self._mapping)
            self._words[layout.CURSOR_VERSION // WORD] = layout.VERSION
            self._words[layout.CURSOR_SLOTS // WORD] = slots
            name = label.encode()[: layout.CURSOR_LABEL_SIZE]
            self._mapping[layout.CURSOR_LABEL : layout.CURSOR_LABEL + len(name)] = name
            self._mapping[: len(layout.CURSOR_MAGIC)] = layout.CURSOR_MAGIC
            os.rename(temporary, self.path)
        except BaseException:
            os.close(self._descriptor)
            temporary.unlink(missing_ok=True)
            raise
        self._slots = [Slot(self._mapping, self._words, index) for index in range(slots)]

    def take_slot(self, topic_id: bytes, partition: int, offset: int) -> Slot:
        for slot in self._slots:
            if slot.is_free:
                slot.take(topic_id, partition, offset)
                return slot
        raise RuntimeError(f"all {len(self._slots)} slots of {self.path} are in use")

    def beat(self) -> None:
        self._words[layout.CURSOR_HEARTBEAT // WORD] += 1

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class ReaderSlot:
    """One slot as the broker sees it."""

    session: str
    label: str
    index: int
    topic_id: bytes
    partition: int
    state: SlotState
    pinned: int
    finished: int
    push_records: int
    push_bytes: int
    pull_records: int
    pull_bytes: int


class _Reader:
    """A cursor file as the broker sees it."""

    def __init__(self, path: Path) -> None:
        self.session = path.stem
        # Readers write this directory: what looks like a cursor may be anything, a pipe that blocks even.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            head = os.pread(self._descriptor, layout.CURSOR_HEADER, 0)
            slots = int.from_bytes(head[layout.CURSOR_SLOTS :][:WORD], "little")
            if not head.startswith(layout.CURSOR_MAGIC) or not 0 < slots <= _MOST_SLOTS:
                raise ValueError(f"{path} is not a cursor file")
        except BaseException:
            os.close(self._descriptor)
            raise
        self._size = _slot_position(slots)
        label = head[layout.CURSOR_LABEL : layout.CURSOR_LABEL + layout.CURSOR_LABEL_SIZE]
        self.label = label.rstrip(b"\0").decode(errors="replace")

    def is_alive(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
        except OSError:
            return True
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, 0)
        return False

    def read(self) -> Iterator[ReaderSlot]:
        """The slots in use, and those that were used."""
        # The kernel may copy a word that is just being stored in two halves. A wrong pin is no harm: a pin
        # that counts was stored a tick ago (rule S3), and half of one names no segment.
        content = os.pread(self._descriptor, self._size, 0)
        words = memoryview(content)[: len(content) // WORD * WORD].cast("q")
        places = range(
            layout.CURSOR_HEADER, len(content) - layout.CURSOR_SLOT_SIZE + 1, layout.CURSOR_SLOT_SIZE
        )
        for index, position in enumerate(places):
            word = position // WORD
            state = words[word + _STATE]
            if state == SlotState.FREE:
                if not words[word + _PUSH_RECORDS] and not words[word + _PULL_RECORDS]:
                    continue
            elif state not in (SlotState.PUSH, SlotState.PULL):
                continue
            yield ReaderSlot(
                self.session,
                self.label,
                index,
                content[position : position + 16],
                words[word + layout.SLOT_PARTITION // WORD],
                SlotState(state),
                words[word + _PINNED],
                words[word + _FINISHED],
                words[word + _PUSH_RECORDS],
                words[word + _PUSH_BYTES],
                words[word + _PULL_RECORDS],
                words[word + layout.SLOT_PULL_BYTES // WORD],
            )

    def close(self) -> None:
        os.close(self._descriptor)


class ReaderRegistry:
    """The broker's side: all living readers of its log."""

    def __init__(self, broker_directory: Path, elsewhere: Path | None = None) -> None:
        """`elsewhere`: where the files really are, for readers that may not write in this directory."""
        self._directory = broker_directory / layout.CURSOR_DIR
        if self._directory.is_symlink():
            self._directory.unlink()
        if elsewhere is None:
            self._directory.mkdir(parents=True, exist_ok=True)
        else:
            elsewhere.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self._directory, ignore_errors=True)  # of a life without `elsewhere`
            self._directory.symlink_to(elsewhere)
        self._readers: dict[str, _Reader] = {}

    def refresh(self) -> None:
        """Find new readers, forget the dead and remove what they left."""
        try:
            found = os.listdir(self._directory)  # ten times a second, for ever: no pathlib here
        except OSError:
            found = []  # somebody took the directory away: nobody can be reading through it
        names = {name: self._directory / name for name in found if name.endswith(layout.CURSOR_SUFFIX)}
        for name in list(self._readers.keys() - names.keys()):
            self._readers.pop(name).close()
        for name, path in names.items():
            reader = self._readers.get(name)
            if reader is None:
                try:
                    reader = self._readers[name] = _Reader(path)
                except (OSError, ValueError):
                    continue  # gone again, or not ours; a file we can't read pins nothing
            if not reader.is_alive():
                path.unlink(missing_ok=True)
                self._readers.pop(name).close()

    def slots(self) -> Iterator[ReaderSlot]:
        """Where readers are now."""
        return (slot for slot in self.counts() if slot.state is not SlotState.FREE)

    def counts(self) -> Iterator[ReaderSlot]:
        """The same with slots that were given back: what they counted stands."""
        for reader in list(self._readers.values()):
            yield from reader.read()

    def pins(self) -> set[tuple[bytes, int, int]]:
        """(topic id, partition, base offset) of every segment that a reader says it is using.

        New readers are looked for first: one that came since the last tick may have pinned already.
        """
        self.refresh()
        return {(slot.topic_id, slot.partition, slot.pinned) for slot in self.slots() if slot.pinned >= 0}

    def __len__(self) -> int:
        return len(self._readers)
