package io.penstock.shm;

import io.penstock.record.BatchSource;
import io.penstock.record.CorruptBatch;
import io.penstock.record.RecordBatch;
import java.io.IOException;

/** Walks a partition's segments in shared memory, one pinned at a time, up to the commit word. */
public final class PushSource implements BatchSource {
  private final PartitionMemory memory;
  private final CursorFile.Slot cursor;
  private Segment segment;
  private int position;
  private int size;
  private long committed;

  public PushSource(PartitionMemory memory, String label, long offset) throws IOException {
    this.memory = memory;
    this.cursor = SharedMemory.ofThisProcess().cursor(memory, label, offset);
  }

  @Override
  public boolean open(long offset) throws IOException {
    if (!memory.live()) {
      throw new MemoryUnavailable(memory + " is no longer led by the broker it was found with");
    }
    committed = memory.commit();
    if (committed <= offset) {
      return false;
    }
    if (segment == null) {
      if (!memory.holds(offset)) {
        throw new MemoryUnavailable("offset " + offset + " is no longer in " + memory);
      }
      enter(memory.segmentOf(offset));
    }
    while (true) {
      // In this order: once a next segment is named, nothing more is written to this one.
      long nextBase = segment.nextBase();
      skipTo(offset);
      if (hasBatch()) {
        return true;
      }
      if (position < segment.end() || nextBase < 0) {
        return false;
      }
      enter(nextBase);
    }
  }

  private void skipTo(long offset) {
    while (hasBatch() && RecordBatch.nextOffset(address()) <= offset) {
      pass();
    }
  }

  private void enter(long base) throws IOException {
    Segment next = memory.segment(base);
    cursor.pin(base);
    leave();
    if (!memory.isMine(next, base)) {
      next.letGo();
      cursor.unpin();
      throw new MemoryUnavailable("offset " + base + " is no longer in " + memory);
    }
    segment = next;
    position = Layout.SEGMENT_HEADER;
    size = 0;
  }

  private void leave() {
    if (segment != null) {
      segment.letGo();
      segment = null;
    }
  }

  @Override
  public boolean hasBatch() {
    if (size > 0) {
      return true;
    }
    int end = segment.end();
    if (position >= end) {
      return false;
    }
    size = RecordBatch.size(address(), end - position);
    if (size == 0) {
      throw new CorruptBatch("a record batch in " + memory + " is longer than what was written");
    }
    if (RecordBatch.baseOffset(address()) >= committed) {
      size = 0;
      return false;
    }
    return true;
  }

  @Override
  public long address() {
    return segment.address() + position;
  }

  @Override
  public int size() {
    return size;
  }

  @Override
  public void pass() {
    position += size;
    size = 0;
  }

  @Override
  public boolean intact() {
    return segment == null || segment.intact();
  }

  @Override
  public long barrenUntil() {
    return committed;
  }

  /** Gives up the place in the log, not the cursor: the reader goes on by pull. */
  public void rest() {
    leave();
    cursor.unpin();
    size = 0;
  }

  /** Publishes how far the reader is, for the broker's list of readers. */
  public void report(boolean pulling, long finished, long pushed, long pushedBytes, long pulled, long pulledBytes) {
    cursor.state(pulling ? Layout.SLOT_STATE_PULL : Layout.SLOT_STATE_PUSH);
    cursor.finished(finished);
    cursor.totals(pushed, pushedBytes, pulled, pulledBytes);
  }

  @Override
  public void close() {
    rest();
    cursor.close();
  }
}
