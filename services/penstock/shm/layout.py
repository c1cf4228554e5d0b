"""The shared-memory layout: every file, every offset, in one place.

Called by everything that touches shared memory; nothing else in the code knows a number. The Java
connector has the same constants (`Layout.java`), held to these by `tests/unit/test_layout.py`.
All words are 8 bytes, little-endian and aligned; a word that another process reads is stored only
through `memoryview.cast("q")` (one move instruction), never with `struct.pack_into`, which clears
the bytes first.

    <shm root>/<broker id>/
      node.ctl                      one per broker process
      <topic id, 32 hex digits>/<partition>/
        part.ctl                    one per partition
        <base offset, 20 digits>.seg
      cursors/<session>.cur         one per reader process; the only files a reader writes

node.ctl, 4096 bytes, written by the broker

      0  magic        "PSTKNODE"
      8  version      layout version
     16  broker id
     24  incarnation  a new positive number at every start of the broker; 0 after a clean stop
     64  heartbeat    a counter, raised every 100 ms; watched with the reader's own clock

part.ctl, 4096 bytes, written by the partition's leader

      0  magic        "PSTKPART"
      8  version
     16  topic id     16 bytes
     32  partition
     64  incarnation  of the broker process that serves this partition; see `state`
     72  state        LIVE, SUSPECT, FENCED or GONE; LIVE counts only while `incarnation` is node.ctl's
     80  leader epoch
     88  promised     the highest epoch this replica has ever acknowledged
    128  commit word  the doorbell: records below this offset may be read, none at or above it
    192  append word  the log end offset as far as whole batches were written; for recovery only
    256  log start    the oldest offset that is still readable
    264  oldest base  base offset of the oldest segment in memory, -1 when there is none
    272  newest base  base offset of the newest segment in memory, -1 when there is none

<base offset>.seg, 4096 bytes of header, then record batches exactly as Kafka clients send and fetch them;
a page of header keeps the batches block-aligned, so that write-behind can use direct I/O on them

      0  magic        "PSTKSEGM"
      8  generation   even: in use; odd: retiring (see below); changes when the memory gets a new owner
     16  topic id     16 bytes
     32  partition
     40  base offset
     64  written      bytes of whole batches behind the header, stored after the batch itself
     72  next base    base offset of the following segment; -1 while this one is the newest
     80  max time     largest record timestamp in it, in milliseconds, -1 when there is none
     88  flushed      bytes of batches that its file is known to have; for the broker's next process
   4096  batches

<session>.cur, 128 bytes of header, then slots of 128 bytes, written by one reader process, which holds
a POSIX (fcntl) write lock on byte 0 of the file for as long as it lives

      0  magic        "PSTKCURS"
      8  version
     16  slots        how many slots follow
     24  heartbeat    a counter
     32  label        up to 96 bytes of UTF-8, zero padded: who this is, for people

    slot  0  topic id     16 bytes
         16  partition
         24  state        0 free, 1 reading by push, 2 reading by pull
         32  pinned       base offset of the segment in use, -1 for none
         40  finished     every record below this offset is done with
         48  push records, 56 push bytes, 64 pull records, 72 pull bytes   since the slot was taken

How a reader walks. It holds (segment, position, next offset). Only if the commit word, loaded with
acquire semantics, is above its next offset may it look at the segment: if `next base` is not -1 and
the position has reached `written`, the next batch is in the segment named by `next base`; otherwise
a whole committed batch lies at the position. Every length found in it is bounded by `written`.

How memory is recycled. A reader pins a segment by storing its base offset in its slot, then (after a
full fence) checks magic, topic id, partition, base offset and that the generation is even and the one
it mapped. The broker that wants the memory back makes the generation odd, waits a tick, and looks at
the pins: pinned, it unlinks the file and leaves the memory alone (a mapping outlives the name);
not pinned, it renames the file to its new place and raises the generation. Past its budget for
unlinked memory it takes pinned memory too. So a pinned reader's bytes are good while the generation is
the one it mapped, or that plus one.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Final

VERSION: Final = 1
WORD: Final = 8

NODE_FILE: Final = "node.ctl"
NODE_SIZE: Final = 4096
NODE_MAGIC: Final = b"PSTKNODE"
NODE_VERSION: Final = 8
NODE_BROKER: Final = 16
NODE_INCARNATION: Final = 24
NODE_HEARTBEAT: Final = 64

PART_FILE: Final = "part.ctl"
PART_SIZE: Final = 4096
PART_MAGIC: Final = b"PSTKPART"
PART_VERSION: Final = 8
PART_TOPIC: Final = 16
PART_PARTITION: Final = 32
PART_INCARNATION: Final = 64
PART_STATE: Final = 72
PART_EPOCH: Final = 80
PART_PROMISED: Final = 88
PART_COMMIT: Final = 128
PART_APPEND: Final = 192
PART_LOG_START: Final = 256
PART_OLDEST: Final = 264
PART_NEWEST: Final = 272

SEGMENT_SUFFIX: Final = ".seg"
SEGMENT_MAGIC: Final = b"PSTKSEGM"
SEGMENT_GENERATION: Final = 8
SEGMENT_TOPIC: Final = 16
SEGMENT_PARTITION: Final = 32
SEGMENT_BASE: Final = 40
SEGMENT_WRITTEN: Final = 64
SEGMENT_NEXT: Final = 72
SEGMENT_MAX_TIME: Final = 80
SEGMENT_FLUSHED: Final = 88
SEGMENT_HEADER: Final = 4096

CURSOR_DIR: Final = "cursors"
CURSOR_SUFFIX: Final = ".cur"
CURSOR_MAGIC: Final = b"PSTKCURS"
CURSOR_VERSION: Final = 8
CURSOR_SLOTS: Final = 16
CURSOR_HEARTBEAT: Final = 24
CURSOR_LABEL: Final = 32
CURSOR_LABEL_SIZE: Final = 96
CURSOR_HEADER: Final = 128
CURSOR_SLOT_SIZE: Final = 128
CURSOR_DEFAULT_SLOTS: Final = 511
SLOT_TOPIC: Final = 0
SLOT_PARTITION: Final = 16
SLOT_STATE: Final = 24
SLOT_PINNED: Final = 32
SLOT_FINISHED: Final = 40
SLOT_PUSH_RECORDS: Final = 48
SLOT_PUSH_BYTES: Final = 56
SLOT_PULL_RECORDS: Final = 64
SLOT_PULL_BYTES: Final = 72


class PartitionState(IntEnum):
    """What `state` in part.ctl says; only LIVE may be read, and only under the current incarnation."""

    LIVE = 1
    SUSPECT = 2
    FENCED = 3
    GONE = 4


class SlotState(IntEnum):
    """What a reader's slot is used for."""

    FREE = 0
    PUSH = 1
    PULL = 2


def broker_dir(root: Path, broker_id: int) -> Path:
    return root / str(broker_id)


def partition_dir(broker: Path, topic_id: bytes, partition: int) -> Path:
    return broker / topic_id.hex() / str(partition)


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}{SEGMENT_SUFFIX}"
