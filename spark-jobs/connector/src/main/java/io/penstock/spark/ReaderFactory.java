package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.Feed;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Makes readers in the executors: columnar ones for ranges, row by row for real time. */
final class ReaderFactory implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;

  private final SourceOptions options;
  private final StructType schema;
  private final Totals totals;
  private final String application;

  ReaderFactory(SourceOptions options, StructType schema, Totals totals, String application) {
    this.options = options;
    this.schema = schema;
    this.totals = totals;
    this.application = application;
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return partition instanceof RangePartition;
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    RangePartition range = (RangePartition) partition;
    Cluster cluster = Cluster.of(options.settings);
    Feed feed = new Feed(cluster, range.location(), options.mode, label(), true, range.until());
    return new RangeReader(cluster, feed, range, schema, options, totals);
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    return new FollowReader((FollowPartition) partition, schema, options, totals, label());
  }

  /** Who reads, for people who look at the broker's list of readers. */
  private String label() {
    return application + " executor " + SparkEnv.get().executorId();
  }
}
