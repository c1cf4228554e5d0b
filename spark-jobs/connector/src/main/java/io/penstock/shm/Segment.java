package io.penstock.shm;

import java.io.IOException;
import java.lang.invoke.VarHandle;
import java.nio.file.Path;

/**
 * A mapped segment. Several tasks of a process share one mapping; it goes away when the last of them has
 * let go and the memory has a new owner.
 */
final class Segment {
  private final Mapping mapping;
  private final long generation;
  private int holders;
  private boolean dropped;

  private Segment(Mapping mapping) {
    this.mapping = mapping;
    this.generation = mapping.acquire(Layout.SEGMENT_GENERATION);
  }

  static Segment map(Path file) throws IOException {
    Segment segment = new Segment(Mapping.readOnly(file, Layout.SEGMENT_HEADER));
    if (!segment.current()) {
      segment.mapping.unmap();
      throw new MemoryUnavailable(file + " is being recycled");
    }
    return segment;
  }

  long address() {
    return mapping.address;
  }

  int capacity() {
    return mapping.size;
  }

  long nextBase() {
    return mapping.acquire(Layout.SEGMENT_NEXT);
  }

  /** The position behind the last whole batch. */
  int end() {
    long written = mapping.acquire(Layout.SEGMENT_WRITTEN);
    return Layout.SEGMENT_HEADER + (int) Math.max(0, Math.min(written, capacity() - Layout.SEGMENT_HEADER));
  }

  /** Whether it may still be pinned: in use, by the owner it was mapped under. */
  boolean current() {
    return (generation & 1) == 0 && mapping.acquire(Layout.SEGMENT_GENERATION) == generation;
  }

  boolean belongsTo(byte[] topicId, int partition, long base) {
    return mapping.has(Layout.SEGMENT_MAGIC)
        && mapping.matches(Layout.SEGMENT_TOPIC, topicId)
        && mapping.acquire(Layout.SEGMENT_PARTITION) == partition
        && mapping.acquire(Layout.SEGMENT_BASE) == base
        && current();
  }

  /** Whether bytes read so far, under a pin, were the log's: retiring is fine, a new owner is not. */
  boolean intact() {
    VarHandle.loadLoadFence();
    long now = mapping.acquire(Layout.SEGMENT_GENERATION);
    return now == generation || now == generation + 1;
  }

  synchronized boolean hold() {
    if (dropped && holders == 0) {
      return false;
    }
    holders++;
    return true;
  }

  synchronized void letGo() {
    holders--;
    unmapIfUnused();
  }

  /** The cache has forgotten it. */
  synchronized void drop() {
    dropped = true;
    unmapIfUnused();
  }

  private void unmapIfUnused() {
    if (dropped && holders == 0) {
      mapping.unmap();
    }
  }
}
