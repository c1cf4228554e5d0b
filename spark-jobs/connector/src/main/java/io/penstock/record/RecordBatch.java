package io.penstock.record;

import java.nio.ByteOrder;
import org.apache.spark.unsafe.Platform;

/**
 * A Kafka record batch (version 2) at an address. Big-endian, as on the wire:
 *
 * <pre>
 *    0  base offset         8       35  largest timestamp   8
 *    8  length behind this  4       43  producer id         8
 *   12  leader epoch        4       51  producer epoch      2
 *   16  magic               1       53  base sequence       4
 *   17  crc                 4       57  records             4
 *   21  attributes          2       61  the records
 *   23  last offset delta   4
 *   27  base timestamp      8
 * </pre>
 */
public final class RecordBatch {
  static final int LENGTH = 8;
  static final int EPOCH = 12;
  static final int MAGIC = 16;
  static final int CRC = 17;
  static final int ATTRIBUTES = 21;
  static final int LAST_OFFSET_DELTA = 23;
  static final int BASE_TIMESTAMP = 27;
  static final int MAX_TIMESTAMP = 35;
  static final int PRODUCER_ID = 43;
  static final int PRODUCER_EPOCH = 51;
  static final int BASE_SEQUENCE = 53;
  static final int COUNT = 57;
  static final int HEADER = 61;
  /** What stands before the part that {@link #LENGTH} counts. */
  static final int PREFIX = 12;

  static final int CODEC_MASK = 0x07;
  static final int LOG_APPEND_TIME = 0x08;
  static final int CONTROL = 0x20;

  /** A record has at least: length, attributes, timestamp, offset, key length, value length, headers. */
  static final int LEAST_RECORD = 7;

  private static final boolean SWAP = ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN;

  private RecordBatch() {}

  static int int32(long address) {
    int raw = Platform.getInt(null, address);
    return SWAP ? Integer.reverseBytes(raw) : raw;
  }

  static long int64(long address) {
    long raw = Platform.getLong(null, address);
    return SWAP ? Long.reverseBytes(raw) : raw;
  }

  /** The size of the batch here, once it is known to lie within what is left; 0 if it is cut off. */
  public static int size(long address, long left) {
    if (left < HEADER) {
      return 0;
    }
    long size = (long) PREFIX + int32(address + LENGTH);
    if (size < HEADER) {
      throw new CorruptBatch("a record batch of " + size + " bytes");
    }
    if (size > left) {
      return 0;
    }
    byte magic = Platform.getByte(null, address + MAGIC);
    if (magic != 2) {
      throw new CorruptBatch("a record batch of format " + magic + "; only version 2 is read");
    }
    return (int) size;
  }

  public static long baseOffset(long address) {
    return int64(address);
  }

  /** The offset behind the batch. */
  public static long nextOffset(long address) {
    return int64(address) + int32(address + LAST_OFFSET_DELTA) + 1;
  }

  static int attributes(long address) {
    return (Platform.getByte(null, address + ATTRIBUTES) << 8)
        | (Platform.getByte(null, address + ATTRIBUTES + 1) & 0xff);
  }

  public static long maxTimestamp(long address) {
    return int64(address + MAX_TIMESTAMP);
  }

  /** Whether the broker stamped it: then all its records have the largest timestamp. */
  public static boolean hasAppendTime(long address) {
    return (attributes(address) & LOG_APPEND_TIME) != 0;
  }

  static int count(long address) {
    return int32(address + COUNT);
  }

  public static boolean isControl(long address) {
    return (attributes(address) & CONTROL) != 0;
  }
}
