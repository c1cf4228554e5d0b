package io.penstock.shm;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.arrow.memory.util.MemoryUtil;
import org.apache.spark.storage.StorageUtils;

/** One file of shared memory, mapped into this process. Words are 8 bytes, little-endian, aligned. */
final class Mapping {
  private static final VarHandle WORD =
      MethodHandles.byteBufferViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

  private final MappedByteBuffer bytes;
  final long address;
  final int size;

  private Mapping(MappedByteBuffer bytes) {
    this.bytes = bytes;
    this.address = MemoryUtil.getByteBufferAddress(bytes);
    this.size = bytes.capacity();
  }

  /** Maps a whole file; one that is too small is an error here, since a read past its end is a SIGBUS. */
  static Mapping readOnly(Path file, int leastSize) throws IOException {
    try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
      long size = channel.size();
      if (size < leastSize || size > Integer.MAX_VALUE) {
        throw new MemoryUnavailable(file + " has " + size + " bytes");
      }
      return new Mapping(channel.map(FileChannel.MapMode.READ_ONLY, 0, size));
    } catch (NoSuchFileException | AccessDeniedException e) {
      throw new MemoryUnavailable("can't read " + file);
    }
  }

  static Mapping writable(FileChannel channel, int size) throws IOException {
    return new Mapping(channel.map(FileChannel.MapMode.READ_WRITE, 0, size));
  }

  long acquire(int at) {
    return (long) WORD.getAcquire(bytes, at);
  }

  void release(int at, long value) {
    WORD.setRelease(bytes, at, value);
  }

  /** A store that every later load of this thread stays behind: what a pin needs. */
  void storeThenFence(int at, long value) {
    WORD.setVolatile(bytes, at, value);
    VarHandle.fullFence();
  }

  boolean has(String magic) {
    return matches(0, magic.getBytes(StandardCharsets.US_ASCII));
  }

  boolean matches(int at, byte[] expected) {
    for (int i = 0; i < expected.length; i++) {
      if (bytes.get(at + i) != expected[i]) {
        return false;
      }
    }
    return true;
  }

  void put(int at, byte[] value) {
    ByteBuffer target = bytes.duplicate();
    target.position(at);
    target.put(value);
  }

  /** Gives the address range back at once; the garbage collector would keep unlinked memory for long. */
  void unmap() {
    StorageUtils.dispose(bytes);
  }
}
