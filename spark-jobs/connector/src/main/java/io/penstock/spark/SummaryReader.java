package io.penstock.spark;

import io.penstock.client.TopicPartition;
import java.io.IOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;

/** Sums a range up where it lies, from the headers of its batches; Spark adds up what the tasks found. */
final class SummaryReader implements PartitionReader<InternalRow> {
  private final RangeReader range;
  private final TopicPartition id;
  private final Summary summary;
  private Iterator<InternalRow> rows;
  private InternalRow row;

  SummaryReader(RangeReader range, TopicPartition id, Summary summary) {
    this.range = range;
    this.id = id;
    this.summary = summary;
  }

  @Override
  public boolean next() throws IOException {
    if (rows == null) {
      rows = Arrays.asList(summary.rows(List.of(read()))).iterator();
    }
    boolean more = rows.hasNext();
    row = more ? rows.next() : null;
    return more;
  }

  private Summary.Part read() throws IOException {
    long records = 0;
    long least = Long.MAX_VALUE;
    long greatest = -1;
    while (range.next()) {
      int count = range.get().numRows();
      records += count;
      if (summary.needsOffsets()) {
        least = Math.min(least, range.offset(0));
        greatest = Math.max(greatest, range.offset(count - 1));
      }
    }
    return new Summary.Part(id, records, least, greatest);
  }

  @Override
  public InternalRow get() {
    return row;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return range.currentMetricsValues();
  }

  @Override
  public void close() throws IOException {
    range.close();
  }
}
