package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.Feed;
import io.penstock.record.ByteCondition;
import java.util.List;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Makes readers in the executors: columnar ones for ranges, row by row for real time and for summaries. */
final class ReaderFactory implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;

  private final SourceOptions options;
  private final StructType schema;
  private final Totals totals;
  private final String application;
  private final TimeBounds times;
  private final List<ByteCondition> conditions;
  /** Null where records themselves are asked for. */
  private final Summary summary;

  ReaderFactory(SourceOptions options, StructType schema, Totals totals, String application) {
    this(options, schema, totals, application, TimeBounds.ALWAYS, List.of(), null);
  }

  ReaderFactory(SourceOptions options, StructType schema, Totals totals, String application, TimeBounds times,
      List<ByteCondition> conditions, Summary summary) {
    this.options = options;
    this.schema = schema;
    this.totals = totals;
    this.application = application;
    this.times = times;
    this.conditions = conditions;
    this.summary = summary;
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return summary == null && partition instanceof RangePartition;
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    return rangeReader((RangePartition) partition);
  }

  private RangeReader rangeReader(RangePartition range) {
    Cluster cluster = Cluster.of(options.settings);
    Feed feed = new Feed(cluster, range.location(), options.mode, label(), true, range.until());
    StructType columns = summary == null ? schema : new StructType();
    return new RangeReader(cluster, feed, range, columns, times, conditions, options, totals);
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    if (partition instanceof RangePartition range) {
      return new SummaryReader(rangeReader(range), range.location().partition(), summary);
    }
    return new FollowReader((FollowPartition) partition, schema, options, totals, label());
  }

  /** Who reads, for people who look at the broker's list of readers. */
  private String label() {
    return application + " executor " + SparkEnv.get().executorId();
  }
}
