package io.penstock.spark;

import io.penstock.record.RecordColumns;
import java.util.Arrays;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of Spark's Kafka source, as lazy vectors over {@link RecordColumns}. */
final class Columns {
  static final String KEY = "key";
  static final String VALUE = "value";
  static final String TOPIC = "topic";
  static final String PARTITION = "partition";
  static final String OFFSET = "offset";
  static final String TIMESTAMP = "timestamp";
  static final String TIMESTAMP_TYPE = "timestampType";
  static final String HEADERS = "headers";

  private static final StructType HEADER =
      new StructType().add("key", DataTypes.StringType).add("value", DataTypes.BinaryType);

  private Columns() {}

  static StructType schema(boolean headers, DataType keyType, DataType valueType) {
    StructType schema = new StructType()
        .add(KEY, keyType)
        .add(VALUE, valueType)
        .add(TOPIC, DataTypes.StringType)
        .add(PARTITION, DataTypes.IntegerType)
        .add(OFFSET, DataTypes.LongType)
        .add(TIMESTAMP, DataTypes.TimestampType)
        .add(TIMESTAMP_TYPE, DataTypes.IntegerType);
    return headers ? schema.add(HEADERS, DataTypes.createArrayType(HEADER)) : schema;
  }

  /** Whether a column is as long as producers make it. */
  static boolean isPayload(String column) {
    return column.equals(KEY) || column.equals(VALUE) || column.equals(HEADERS);
  }

  static ColumnarBatch over(RecordColumns records, StructType schema, String topic, int partition) {
    ColumnVector[] vectors = new ColumnVector[schema.size()];
    for (int column = 0; column < vectors.length; column++) {
      vectors[column] = vector(schema.fields()[column], records, topic, partition);
    }
    return new ColumnarBatch(vectors);
  }

  private static ColumnVector vector(StructField field, RecordColumns records, String topic, int partition) {
    switch (field.name()) {
      case KEY:
        return new Keys(field.dataType(), records);
      case VALUE:
        return new Values(field.dataType(), records);
      case TOPIC:
        return new Topic(topic);
      case PARTITION:
        return new Partition(partition);
      case OFFSET:
        return new Offsets(records);
      case TIMESTAMP:
        return new Timestamps(records);
      case TIMESTAMP_TYPE:
        return new TimestampTypes(records);
      case HEADERS:
        return new Headers(records);
      default:
        throw new IllegalArgumentException("no such column: " + field.name());
    }
  }

  /** A column without nulls that answers nothing; the others say what they have. */
  private abstract static class Vector extends ColumnVector {
    Vector(DataType type) {
      super(type);
    }

    /** Spark closes vectors after every batch; the memory behind them is the reader's. */
    @Override
    public void close() {}

    @Override
    public boolean hasNull() {
      return false;
    }

    @Override
    public int numNulls() {
      return 0;
    }

    @Override
    public boolean isNullAt(int row) {
      return false;
    }

    private UnsupportedOperationException mistyped() {
      return new UnsupportedOperationException(getClass().getSimpleName() + " is " + dataType());
    }

    @Override
    public boolean getBoolean(int row) {
      throw mistyped();
    }

    @Override
    public byte getByte(int row) {
      throw mistyped();
    }

    @Override
    public short getShort(int row) {
      throw mistyped();
    }

    @Override
    public int getInt(int row) {
      throw mistyped();
    }

    @Override
    public long getLong(int row) {
      throw mistyped();
    }

    @Override
    public float getFloat(int row) {
      throw mistyped();
    }

    @Override
    public double getDouble(int row) {
      throw mistyped();
    }

    @Override
    public ColumnarArray getArray(int row) {
      throw mistyped();
    }

    @Override
    public ColumnarMap getMap(int row) {
      throw mistyped();
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
      throw mistyped();
    }

    @Override
    public UTF8String getUTF8String(int row) {
      throw mistyped();
    }

    @Override
    public byte[] getBinary(int row) {
      throw mistyped();
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      throw mistyped();
    }
  }

  /** Byte strings somewhere in memory; a negative length is a null. */
  private abstract static class Bytes extends Vector {
    Bytes(DataType type) {
      super(type);
    }

    abstract int length(int row);

    /** Asked for after {@link #length}. */
    abstract long at(int row);

    @Override
    public boolean hasNull() {
      return true;
    }

    @Override
    public boolean isNullAt(int row) {
      return length(row) < 0;
    }

    @Override
    public byte[] getBinary(int row) {
      int length = length(row);
      return length < 0 ? null : copy(at(row), length);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      int length = length(row);
      return length < 0 ? null : UTF8String.fromAddress(null, at(row), length);
    }
  }

  static byte[] copy(long at, int length) {
    byte[] bytes = new byte[length];
    Platform.copyMemory(null, at, bytes, Platform.BYTE_ARRAY_OFFSET, length);
    return bytes;
  }

  private static final class Keys extends Bytes {
    private final RecordColumns records;

    Keys(DataType type, RecordColumns records) {
      super(type);
      this.records = records;
    }

    @Override
    int length(int row) {
      return records.keyLength(row);
    }

    @Override
    long at(int row) {
      return records.keyAt(row);
    }
  }

  private static final class Values extends Bytes {
    private final RecordColumns records;

    Values(DataType type, RecordColumns records) {
      super(type);
      this.records = records;
    }

    @Override
    int length(int row) {
      return records.valueLength(row);
    }

    @Override
    long at(int row) {
      return records.valueAt(row);
    }
  }

  private static final class Topic extends Vector {
    private final UTF8String topic;

    Topic(String topic) {
      super(DataTypes.StringType);
      this.topic = UTF8String.fromString(topic);
    }

    @Override
    public UTF8String getUTF8String(int row) {
      return topic;
    }
  }

  private static final class Partition extends Vector {
    private final int partition;

    Partition(int partition) {
      super(DataTypes.IntegerType);
      this.partition = partition;
    }

    @Override
    public int getInt(int row) {
      return partition;
    }
  }

  private static final class Offsets extends Vector {
    private final RecordColumns records;

    Offsets(RecordColumns records) {
      super(DataTypes.LongType);
      this.records = records;
    }

    @Override
    public long getLong(int row) {
      return records.offset(row);
    }
  }

  private static final class Timestamps extends Vector {
    private final RecordColumns records;

    Timestamps(RecordColumns records) {
      super(DataTypes.TimestampType);
      this.records = records;
    }

    /** Spark counts microseconds. */
    @Override
    public long getLong(int row) {
      return records.timestamp(row) * 1000;
    }
  }

  private static final class TimestampTypes extends Vector {
    private final RecordColumns records;

    TimestampTypes(RecordColumns records) {
      super(DataTypes.IntegerType);
      this.records = records;
    }

    @Override
    public int getInt(int row) {
      return records.timestampType(row);
    }
  }

  /** A row's headers, decoded when the row is asked for; a record without any has a null, as with Kafka. */
  private static final class Headers extends Vector {
    private final RecordColumns records;

    Headers(RecordColumns records) {
      super(DataTypes.createArrayType(HEADER));
      this.records = records;
    }

    @Override
    public boolean hasNull() {
      return true;
    }

    @Override
    public boolean isNullAt(int row) {
      return read(row).count == 0;
    }

    @Override
    public ColumnarArray getArray(int row) {
      HeaderList list = read(row);
      return new ColumnarArray(list, 0, list.count);
    }

    private HeaderList read(int row) {
      HeaderList list = new HeaderList((StructType) ((ArrayType) dataType()).elementType());
      records.eachHeader(row, list::add);
      return list;
    }
  }

  private static final class HeaderList extends Vector {
    private final Spans keys = new Spans(DataTypes.StringType);
    private final Spans values = new Spans(DataTypes.BinaryType);
    private int count;

    HeaderList(StructType type) {
      super(type);
    }

    void add(long keyAt, int keyLength, long valueAt, int valueLength) {
      keys.set(count, keyAt, keyLength);
      values.set(count, valueAt, valueLength);
      count++;
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      return ordinal == 0 ? keys : values;
    }
  }

  private static final class Spans extends Bytes {
    private long[] at = new long[4];
    private int[] length = new int[4];

    Spans(DataType type) {
      super(type);
    }

    void set(int row, long at, int length) {
      if (row == this.at.length) {
        this.at = Arrays.copyOf(this.at, row * 2);
        this.length = Arrays.copyOf(this.length, row * 2);
      }
      this.at[row] = at;
      this.length[row] = length;
    }

    @Override
    int length(int row) {
      return length[row];
    }

    @Override
    long at(int row) {
      return at[row];
    }
  }
}
