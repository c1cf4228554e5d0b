package io.penstock.shm;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.BitSet;
import java.util.UUID;

/**
 * This process's file of cursors with one broker: what its tasks pin and have finished with. The broker
 * counts the process as alive while it holds the lock on byte 0, so the file is opened once and never
 * closed before its end: closing any descriptor of it would drop a POSIX lock.
 */
final class CursorFile {
  private static final int[] COUNTS = {
      Layout.SLOT_PUSH_RECORDS, Layout.SLOT_PUSH_BYTES, Layout.SLOT_PULL_RECORDS, Layout.SLOT_PULL_BYTES
  };

  private final Path file;
  private final FileChannel channel;
  private final Mapping mapping;
  private final BitSet taken = new BitSet(Layout.CURSOR_DEFAULT_SLOTS);
  private long beats;

  private CursorFile(Path file, FileChannel channel, Mapping mapping) {
    this.file = file;
    this.channel = channel;
    this.mapping = mapping;
  }

  /** Locked and filled under a temporary name, so that the broker never finds it half made. */
  static CursorFile create(Path brokerDirectory, String label) throws IOException {
    Path directory = brokerDirectory.resolve(Layout.CURSOR_DIR);
    String session = UUID.randomUUID().toString();
    Path draft = directory.resolve(session + ".tmp");
    Path file = directory.resolve(session + Layout.CURSOR_SUFFIX);
    int size = Layout.CURSOR_HEADER + Layout.CURSOR_DEFAULT_SLOTS * Layout.CURSOR_SLOT_SIZE;
    FileChannel channel;
    try {
      channel = FileChannel.open(
          draft, StandardOpenOption.CREATE_NEW, StandardOpenOption.READ, StandardOpenOption.WRITE);
    } catch (IOException e) {
      throw new MemoryUnavailable("can't make a cursor file: " + e);
    }
    try {
      // Written in full: a hole would be a SIGBUS if the file system is full when it is touched.
      ByteBuffer zeros = ByteBuffer.allocate(size);
      while (zeros.hasRemaining()) {
        channel.write(zeros);
      }
      if (channel.tryLock(0, 1, false) == null) {
        throw new MemoryUnavailable("somebody else holds the lock on " + draft);
      }
      Mapping mapping = Mapping.writable(channel, size);
      mapping.put(Layout.CURSOR_LABEL, fit(label));
      mapping.release(Layout.CURSOR_VERSION, Layout.VERSION);
      mapping.release(Layout.CURSOR_SLOTS, Layout.CURSOR_DEFAULT_SLOTS);
      for (int slot = 0; slot < Layout.CURSOR_DEFAULT_SLOTS; slot++) {
        mapping.release(at(slot) + Layout.SLOT_PINNED, -1);
      }
      mapping.put(0, Layout.CURSOR_MAGIC.getBytes(StandardCharsets.US_ASCII));
      Files.move(draft, file, StandardCopyOption.ATOMIC_MOVE);
      return new CursorFile(file, channel, mapping);
    } catch (IOException e) {
      channel.close();
      Files.deleteIfExists(draft);
      throw e;
    }
  }

  private static byte[] fit(String label) {
    byte[] bytes = label.getBytes(StandardCharsets.UTF_8);
    return bytes.length <= Layout.CURSOR_LABEL_SIZE ? bytes : Arrays.copyOf(bytes, Layout.CURSOR_LABEL_SIZE);
  }

  private static int at(int slot) {
    return Layout.CURSOR_HEADER + slot * Layout.CURSOR_SLOT_SIZE;
  }

  synchronized Slot take(byte[] topicId, int partition, long offset) throws MemoryUnavailable {
    int free = taken.nextClearBit(0);
    if (free >= Layout.CURSOR_DEFAULT_SLOTS) {
      throw new MemoryUnavailable("all " + Layout.CURSOR_DEFAULT_SLOTS + " slots of " + file + " are in use");
    }
    taken.set(free);
    Slot slot = new Slot(free);
    mapping.put(slot.at + Layout.SLOT_TOPIC, topicId);
    mapping.release(slot.at + Layout.SLOT_PARTITION, partition);
    mapping.release(slot.at + Layout.SLOT_PINNED, -1);
    mapping.release(slot.at + Layout.SLOT_FINISHED, offset);
    mapping.release(slot.at + Layout.SLOT_STATE, Layout.SLOT_STATE_PUSH);
    mapping.release(Layout.CURSOR_HEARTBEAT, ++beats);
    return slot;
  }

  private synchronized void giveBack(int number) {
    mapping.release(at(number) + Layout.SLOT_STATE, Layout.SLOT_STATE_FREE);
    mapping.release(at(number) + Layout.SLOT_PINNED, -1);
    taken.clear(number);
  }

  synchronized boolean unused() {
    return taken.isEmpty();
  }

  boolean exists() {
    return Files.exists(file);
  }

  void remove() {
    try {
      Files.deleteIfExists(file);
      channel.close();
    } catch (IOException ignored) {
      // Its directory is gone: so is the file.
    }
    mapping.unmap();
  }

  /** One task's cursor in one partition. */
  final class Slot {
    private final int number;
    private final int at;
    /** What the slot's users before had counted: the file's counts only grow, however short a task is. */
    private final long[] before = new long[COUNTS.length];
    private boolean open = true;

    private Slot(int number) {
      this.number = number;
      this.at = CursorFile.at(number);
      for (int count = 0; count < COUNTS.length; count++) {
        before[count] = mapping.acquire(at + COUNTS[count]);
      }
    }

    void pin(long base) {
      mapping.storeThenFence(at + Layout.SLOT_PINNED, base);
    }

    void unpin() {
      mapping.release(at + Layout.SLOT_PINNED, -1);
    }

    void state(int state) {
      mapping.release(at + Layout.SLOT_STATE, state);
    }

    void finished(long offset) {
      mapping.release(at + Layout.SLOT_FINISHED, offset);
    }

    void totals(long pushRecords, long pushBytes, long pullRecords, long pullBytes) {
      mapping.release(at + Layout.SLOT_PUSH_RECORDS, before[0] + pushRecords);
      mapping.release(at + Layout.SLOT_PUSH_BYTES, before[1] + pushBytes);
      mapping.release(at + Layout.SLOT_PULL_RECORDS, before[2] + pullRecords);
      mapping.release(at + Layout.SLOT_PULL_BYTES, before[3] + pullBytes);
    }

    void close() {
      if (open) {
        open = false;
        giveBack(number);
      }
    }
  }
}
