package io.penstock.record;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.unsafe.Platform;

/** Memory outside the heap for copies, so that the decoder sees addresses only, whatever the source. */
public final class Arena implements AutoCloseable {
  private static final long LEAST = 1 << 16;

  private final List<long[]> blocks = new ArrayList<>();
  private int used;
  private long top;

  /** Room for so many bytes, good until {@link #clear}. */
  public long allocate(long size) {
    while (used < blocks.size() && top + size > blocks.get(used)[1]) {
      used++;
      top = 0;
    }
    if (used == blocks.size()) {
      long room = Math.max(size, LEAST << Math.min(used, 8));
      blocks.add(new long[] {Platform.allocateMemory(room), room});
      top = 0;
    }
    long address = blocks.get(used)[0] + top;
    top += (size + 7) & ~7L;
    return address;
  }

  public long copyOf(byte[] bytes) {
    long address = allocate(bytes.length);
    Platform.copyMemory(bytes, Platform.BYTE_ARRAY_OFFSET, null, address, bytes.length);
    return address;
  }

  public long copyOf(long from, int size) {
    long address = allocate(size);
    Platform.copyMemory(null, from, null, address, size);
    return address;
  }

  public void clear() {
    used = 0;
    top = 0;
  }

  @Override
  public void close() {
    for (long[] block : blocks) {
      Platform.freeMemory(block[0]);
    }
    blocks.clear();
    clear();
  }
}
