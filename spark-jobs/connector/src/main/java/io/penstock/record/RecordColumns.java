package io.penstock.record;

import java.util.Arrays;
import java.util.List;
import org.apache.spark.unsafe.Platform;

/**
 * The records of several batches as columns, decoded only as far as somebody asks: adding a batch reads its
 * header, the first look at a key or a value finds those of all rows, timestamps and headers are apart.
 * Every length is held against the end of its batch, since a false one would read outside the mapping.
 */
public final class RecordColumns implements AutoCloseable {
  // Per batch: its header's address, where its records lie (inflated on demand), and the rows taken from it.
  private long[] headers = new long[16];
  private long[] begins = new long[16];
  private long[] ends = new long[16];
  private int[] skips = new int[16];
  private int[] firstRows = new int[16];
  private int batches;
  private int rows;
  private long bytes;

  // Per row, filled on demand.
  private long[] keyAt = {};
  private int[] keyLength = {};
  private long[] valueAt = {};
  private int[] valueLength = {};
  private long[] offsets = {};
  private long[] timestamps = {};
  private boolean located;
  private boolean numbered;
  private boolean timed;

  // Once rows were chosen: which of all they are. Keys and values have moved up, the rest is where it was.
  private int[] chosen = {};
  private int chosenRows;
  private boolean isChosen;

  private final Arena arena = new Arena();
  /** Where the varint that was read last ends; a field, since Java returns one value. */
  private long cursor;

  public int rows() {
    return isChosen ? chosenRows : rows;
  }

  /** Bytes of the batches in it, as they lie in the log. */
  public long bytes() {
    return bytes;
  }

  public void clear() {
    batches = 0;
    rows = 0;
    bytes = 0;
    located = false;
    numbered = false;
    timed = false;
    isChosen = false;
    arena.clear();
  }

  /** How many rows a batch may bring: its header's word for it. */
  public static int count(long address) {
    return RecordBatch.count(address);
  }

  /** Adds the records of a batch that lie in [from, until). */
  public void add(long address, int size, long from, long until) {
    int count = RecordBatch.count(address);
    int attributes = RecordBatch.attributes(address);
    if ((attributes & RecordBatch.CONTROL) != 0 || count <= 0) {
      bytes += size;
      return;
    }
    if ((attributes & RecordBatch.CODEC_MASK) == 0
        && count > (size - RecordBatch.HEADER) / RecordBatch.LEAST_RECORD) {
      throw new CorruptBatch(count + " records in a batch of " + size + " bytes");
    }
    if (batches == headers.length) {
      growBatches();
    }
    int batch = batches++;
    headers[batch] = address;
    begins[batch] = address + RecordBatch.HEADER;
    ends[batch] = address + size;
    firstRows[batch] = rows;
    skips[batch] = 0;
    long base = RecordBatch.baseOffset(address);
    long next = RecordBatch.nextOffset(address);
    int taken = count;
    if (from > base || until < next) {
      int skip;
      int stop;
      if (next - base == count) {
        skip = (int) Math.max(0, from - base);
        stop = (int) Math.min(count, until - base);
      } else {
        skip = recordsBelow(batch, count, from - base);
        stop = recordsBelow(batch, count, until - base);
      }
      skips[batch] = skip;
      taken = Math.max(0, stop - skip);
    }
    if (rows > Integer.MAX_VALUE - 8 - taken) {
      throw new CorruptBatch("too many records in one batch: " + taken);
    }
    rows += taken;
    bytes += size;
  }

  private void growBatches() {
    int more = headers.length * 2;
    headers = Arrays.copyOf(headers, more);
    begins = Arrays.copyOf(begins, more);
    ends = Arrays.copyOf(ends, more);
    skips = Arrays.copyOf(skips, more);
    firstRows = Arrays.copyOf(firstRows, more);
  }

  private int lastRow(int batch) {
    return batch + 1 < batches ? firstRows[batch + 1] : rows;
  }

  /** Compaction leaves gaps: only the records themselves say which of them lie below an offset. */
  private int recordsBelow(int batch, int count, long delta) {
    inflate(batch);
    long at = begins[batch];
    long end = ends[batch];
    for (int record = 0; record < count; record++) {
      long recordEnd = recordEnd(at, end);
      if (varint(skipVarint(cursor + 1, recordEnd), recordEnd) >= delta) {
        return record;
      }
      at = recordEnd;
    }
    return count;
  }

  private void inflate(int batch) {
    long header = headers[batch];
    if (begins[batch] != header + RecordBatch.HEADER) {
      return;
    }
    Codec codec = Codec.of(RecordBatch.attributes(header));
    if (codec == Codec.NONE) {
      return;
    }
    byte[] deflated = new byte[(int) (ends[batch] - begins[batch])];
    Platform.copyMemory(null, begins[batch], deflated, Platform.BYTE_ARRAY_OFFSET, deflated.length);
    byte[] records = codec.inflate(deflated);
    if (RecordBatch.count(header) > records.length / RecordBatch.LEAST_RECORD) {
      throw new CorruptBatch(RecordBatch.count(header) + " records in " + records.length + " bytes");
    }
    begins[batch] = arena.copyOf(records);
    ends[batch] = begins[batch] + records.length;
  }

  /** Finds keys and values. The loop that all throughput hangs on: one-byte varints are read in place. */
  private void locate() {
    located = true;
    for (int batch = 0; batch < batches; batch++) {
      inflate(batch);
    }
    if (valueAt.length < rows) {
      int room = roomFor(rows);
      keyAt = new long[room];
      keyLength = new int[room];
      valueAt = new long[room];
      valueLength = new int[room];
    }
    for (int batch = 0; batch < batches; batch++) {
      locate(batch);
    }
  }

  private void locate(int batch) {
    long at = begins[batch];
    long end = ends[batch];
    int last = lastRow(batch);
    for (int skip = skips[batch]; skip > 0; skip--) {
      at = recordEnd(at, end);
    }
    for (int row = firstRows[batch]; row < last; row++) {
      long recordEnd = recordEnd(at, end);
      at = skipVarint(cursor + 1, recordEnd);
      at = skipVarint(at, recordEnd);
      int length = at < recordEnd ? Platform.getByte(null, at) : -1;
      if (length >= 0) {
        length = (length >>> 1) ^ -(length & 1);
        at++;
      } else {
        length = varint(at, recordEnd);
        at = cursor;
      }
      keyLength[row] = length;
      keyAt[row] = at;
      if (length > 0) {
        at = within(at, length, recordEnd);
      }
      length = at < recordEnd ? Platform.getByte(null, at) : -1;
      if (length >= 0) {
        length = (length >>> 1) ^ -(length & 1);
        at++;
      } else {
        length = varint(at, recordEnd);
        at = cursor;
      }
      valueLength[row] = length;
      valueAt[row] = at;
      if (length > 0) {
        within(at, length, recordEnd);
      }
      at = recordEnd;
    }
  }

  /** The end of the record at an address; the cursor is left behind its length. */
  private long recordEnd(long at, long end) {
    int length = varint(at, end);
    if (length < 0) {
      throw new CorruptBatch("a record of " + length + " bytes");
    }
    return within(cursor, length, end);
  }

  private static long within(long at, int length, long end) {
    if (length > end - at) {
      throw new CorruptBatch("a length of " + length + " where " + (end - at) + " bytes are left");
    }
    return at + length;
  }

  private static long skipVarint(long at, long end) {
    while (at < end) {
      if (Platform.getByte(null, at++) >= 0) {
        return at;
      }
    }
    throw new CorruptBatch("a number runs over the end of its record");
  }

  private int varint(long at, long end) {
    return (int) varlong(at, end);
  }

  private long varlong(long at, long end) {
    long raw = 0;
    for (int shift = 0; at < end && shift < 70; shift += 7) {
      byte next = Platform.getByte(null, at++);
      raw |= (long) (next & 0x7f) << shift;
      if (next >= 0) {
        cursor = at;
        return (raw >>> 1) ^ -(raw & 1);
      }
    }
    throw new CorruptBatch("a number runs over the end of its record");
  }

  /** Leaves only the rows that meet all conditions. */
  public void choose(List<ByteCondition> conditions) {
    if (!located) {
      locate();
    }
    if (chosen.length < rows) {
      chosen = new int[roomFor(rows)];
    }
    int left = 0;
    for (int row = 0; row < rows; row++) {
      if (isWanted(row, conditions)) {
        chosen[left] = row;
        keyAt[left] = keyAt[row];
        keyLength[left] = keyLength[row];
        valueAt[left] = valueAt[row];
        valueLength[left] = valueLength[row];
        left++;
      }
    }
    chosenRows = left;
    isChosen = true;
  }

  private boolean isWanted(int row, List<ByteCondition> conditions) {
    for (int i = 0; i < conditions.size(); i++) {
      ByteCondition condition = conditions.get(i);
      boolean met = condition.ofKey()
          ? condition.isMet(keyAt[row], keyLength[row])
          : condition.isMet(valueAt[row], valueLength[row]);
      if (!met) {
        return false;
      }
    }
    return true;
  }

  /** Where a row was before others were left out. */
  private int amongAll(int row) {
    return isChosen ? chosen[row] : row;
  }

  private static int roomFor(int rows) {
    return Math.max(1024, rows + rows / 4);
  }

  public int keyLength(int row) {
    if (!located) {
      locate();
    }
    return keyLength[row];
  }

  public long keyAt(int row) {
    return keyAt[row];
  }

  public int valueLength(int row) {
    if (!located) {
      locate();
    }
    return valueLength[row];
  }

  public long valueAt(int row) {
    return valueAt[row];
  }

  public long offset(int row) {
    if (!numbered) {
      number();
    }
    return offsets[amongAll(row)];
  }

  private void number() {
    numbered = true;
    if (offsets.length < rows) {
      offsets = new long[roomFor(rows)];
    }
    for (int batch = 0; batch < batches; batch++) {
      long header = headers[batch];
      long base = RecordBatch.baseOffset(header);
      int last = lastRow(batch);
      if (RecordBatch.nextOffset(header) - base == RecordBatch.count(header)) {
        long offset = base + skips[batch];
        for (int row = firstRows[batch]; row < last; row++) {
          offsets[row] = offset++;
        }
        continue;
      }
      inflate(batch);
      long at = begins[batch];
      for (int row = firstRows[batch] - skips[batch]; row < last; row++) {
        long recordEnd = recordEnd(at, ends[batch]);
        long delta = varint(skipVarint(cursor + 1, recordEnd), recordEnd);
        if (row >= firstRows[batch]) {
          offsets[row] = base + delta;
        }
        at = recordEnd;
      }
    }
  }

  /** In milliseconds. */
  public long timestamp(int row) {
    if (!timed) {
      time();
    }
    return timestamps[amongAll(row)];
  }

  private void time() {
    timed = true;
    for (int batch = 0; batch < batches; batch++) {
      if (!isLogAppendTime(headers[batch])) {
        inflate(batch);
      }
    }
    if (timestamps.length < rows) {
      timestamps = new long[roomFor(rows)];
    }
    for (int batch = 0; batch < batches; batch++) {
      long header = headers[batch];
      int first = firstRows[batch];
      int last = lastRow(batch);
      if (isLogAppendTime(header)) {
        Arrays.fill(timestamps, first, last, RecordBatch.int64(header + RecordBatch.MAX_TIMESTAMP));
        continue;
      }
      long base = RecordBatch.int64(header + RecordBatch.BASE_TIMESTAMP);
      long at = begins[batch];
      long end = ends[batch];
      for (int skip = skips[batch]; skip > 0; skip--) {
        at = recordEnd(at, end);
      }
      for (int row = first; row < last; row++) {
        long recordEnd = recordEnd(at, end);
        timestamps[row] = base + varlong(cursor + 1, recordEnd);
        at = recordEnd;
      }
    }
  }

  private static boolean isLogAppendTime(long header) {
    return (RecordBatch.attributes(header) & RecordBatch.LOG_APPEND_TIME) != 0;
  }

  /** 0: by the producer; 1: by the broker. */
  public int timestampType(int row) {
    return isLogAppendTime(headers[batchOf(amongAll(row))]) ? 1 : 0;
  }

  private int batchOf(int row) {
    int low = 0;
    int high = batches - 1;
    while (low < high) {
      int middle = (low + high + 1) >>> 1;
      if (firstRows[middle] <= row) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  /** Takes a record's headers, one by one. */
  public interface HeaderTaker {
    void header(long keyAt, int keyLength, long valueAt, int valueLength);
  }

  public void eachHeader(int row, HeaderTaker taker) {
    int value = valueLength(row);
    // Not the record's own end, which is not kept: the end of the batch is what keeps reads inside.
    long end = ends[batchOf(amongAll(row))];
    int count = varint(valueAt[row] + Math.max(0, value), end);
    for (int header = 0; header < count; header++) {
      int keyLength = varint(cursor, end);
      long keyAt = cursor;
      int valueLength = varint(within(keyAt, Math.max(0, keyLength), end), end);
      long valueAt = cursor;
      cursor = within(valueAt, Math.max(0, valueLength), end);
      taker.header(keyAt, keyLength, valueAt, valueLength);
    }
  }

  @Override
  public void close() {
    arena.close();
  }
}
