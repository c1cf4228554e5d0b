package io.penstock.spark;

import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** How large a batch query's input is at most, or that nobody knows. */
record RowsAndBytes(OptionalLong numRows, OptionalLong sizeInBytes) implements Statistics {
  static final RowsAndBytes UNKNOWN = new RowsAndBytes(OptionalLong.empty(), OptionalLong.empty());
  /** What a row takes in Spark's memory whatever is in it, and what each column of any length adds. */
  private static final long ROW = 8;
  private static final long REFERENCE = 16;

  /** Bytes of the log weigh only where keys, values or headers are read; the other columns are numbers. */
  static RowsAndBytes of(long rows, long logBytes, StructType schema) {
    long width = ROW;
    boolean payload = false;
    for (StructField field : schema.fields()) {
      boolean anyLength = Columns.isPayload(field.name());
      width += anyLength ? REFERENCE : field.dataType().defaultSize();
      payload |= anyLength;
    }
    return new RowsAndBytes(OptionalLong.of(rows), OptionalLong.of(rows * width + (payload ? logBytes : 0)));
  }
}
