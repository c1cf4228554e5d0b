package io.penstock.record;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.CRC32C;

/** Builds one record batch for a producer; {@link RecordBatch} draws its header. */
public final class BatchWriter {
  private static final int CRC_FROM = RecordBatch.ATTRIBUTES;

  private byte[] bytes = new byte[1 << 12];
  private int size = RecordBatch.HEADER;
  private int count;
  private long firstTimestamp;
  private long maxTimestamp;

  /** A record's header; the value may be null. */
  public record Header(byte[] key, byte[] value) {}

  public int size() {
    return size;
  }

  public int count() {
    return count;
  }

  public void append(long timestamp, byte[] key, byte[] value, Header[] headers) {
    if (count == 0) {
      firstTimestamp = timestamp;
      maxTimestamp = timestamp;
    }
    maxTimestamp = Math.max(maxTimestamp, timestamp);
    long timestampDelta = timestamp - firstTimestamp;
    int length = 1 + sizeOf(timestampDelta) + sizeOf(count) + sizeOf(key) + sizeOf(value) + sizeOf(headers.length);
    for (Header header : headers) {
      length += sizeOf(header.key) + sizeOf(header.value);
    }
    ensure(length + 5);
    varint(length);
    bytes[size++] = 0;
    varint(timestampDelta);
    varint(count);
    bytes(key);
    bytes(value);
    varint(headers.length);
    for (Header header : headers) {
      bytes(header.key);
      bytes(header.value);
    }
    count++;
  }

  /** The batch as it goes to the broker. */
  public ByteBuffer finish(Codec codec, long producerId, short producerEpoch, int baseSequence) throws IOException {
    byte[] whole = bytes;
    int end = size;
    if (codec != Codec.NONE) {
      byte[] deflated = codec.deflate(bytes, RecordBatch.HEADER, size - RecordBatch.HEADER);
      end = RecordBatch.HEADER + deflated.length;
      whole = new byte[end];
      System.arraycopy(deflated, 0, whole, RecordBatch.HEADER, deflated.length);
    }
    ByteBuffer batch = ByteBuffer.wrap(whole, 0, end);
    batch.putLong(0, 0);
    batch.putInt(RecordBatch.LENGTH, end - RecordBatch.PREFIX);
    batch.putInt(RecordBatch.EPOCH, -1);
    batch.put(RecordBatch.MAGIC, (byte) 2);
    batch.putShort(RecordBatch.ATTRIBUTES, (short) codec.ordinal());
    batch.putInt(RecordBatch.LAST_OFFSET_DELTA, count - 1);
    batch.putLong(RecordBatch.BASE_TIMESTAMP, firstTimestamp);
    batch.putLong(RecordBatch.MAX_TIMESTAMP, maxTimestamp);
    batch.putLong(RecordBatch.PRODUCER_ID, producerId);
    batch.putShort(RecordBatch.PRODUCER_EPOCH, producerEpoch);
    batch.putInt(RecordBatch.BASE_SEQUENCE, baseSequence);
    batch.putInt(RecordBatch.COUNT, count);
    CRC32C crc = new CRC32C();
    crc.update(whole, CRC_FROM, end - CRC_FROM);
    batch.putInt(RecordBatch.CRC, (int) crc.getValue());
    return batch;
  }

  private void ensure(int more) {
    if (size + more > bytes.length) {
      bytes = Arrays.copyOf(bytes, Math.max(bytes.length * 2, size + more));
    }
  }

  private static int sizeOf(long value) {
    long raw = (value << 1) ^ (value >> 63);
    int bytes = 1;
    while ((raw & ~0x7fL) != 0) {
      bytes++;
      raw >>>= 7;
    }
    return bytes;
  }

  private static int sizeOf(byte[] value) {
    return value == null ? sizeOf(-1) : sizeOf(value.length) + value.length;
  }

  private void varint(long value) {
    long raw = (value << 1) ^ (value >> 63);
    while ((raw & ~0x7fL) != 0) {
      bytes[size++] = (byte) (raw | 0x80);
      raw >>>= 7;
    }
    bytes[size++] = (byte) raw;
  }

  private void bytes(byte[] value) {
    if (value == null) {
      varint(-1);
      return;
    }
    varint(value.length);
    System.arraycopy(value, 0, bytes, size, value.length);
    size += value.length;
  }
}
