package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.Feed;
import io.penstock.client.KafkaError;
import io.penstock.client.TopicPartition;
import io.penstock.record.ByteCondition;
import io.penstock.record.CorruptBatch;
import io.penstock.record.RecordBatch;
import io.penstock.record.RecordColumns;
import io.penstock.shm.MemoryTaken;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.TimeoutException;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads a range of one partition, in columns that lie where the log lies. */
final class RangeReader implements PartitionReader<ColumnarBatch> {
  /** Kafka batches are merged up to here: small ones would cost more to hand over than to read. */
  private static final int ROWS = 8192;
  /** So many rows tell whether it is worth while to choose among them before Spark does. */
  private static final int TRIED = 8 * ROWS;

  private final Cluster cluster;
  private final Feed feed;
  private final TopicPartition id;
  private final long until;
  private final TimeBounds times;
  private final List<ByteCondition> conditions;
  private final boolean failOnDataLoss;
  private final long patienceMs;
  private final Totals totals;
  private final RecordColumns columns = new RecordColumns();
  private final ColumnarBatch batch;
  private long offset;
  private boolean opened;
  private long looked;
  private long wanted;

  RangeReader(Cluster cluster, Feed feed, RangePartition range, StructType schema, TimeBounds times,
      List<ByteCondition> conditions, SourceOptions options, Totals totals) {
    this.cluster = cluster;
    this.times = times;
    this.conditions = conditions;
    this.feed = feed;
    this.id = feed.partition();
    this.offset = range.from();
    this.until = range.until();
    this.failOnDataLoss = options.failOnDataLoss;
    this.patienceMs = options.pollTimeoutMs;
    this.totals = totals;
    this.batch = Columns.over(columns, schema, id.topic(), id.partition());
  }

  @Override
  public boolean next() throws IOException {
    beginAnew();
    try {
      while (offset < until && columns.rows() == 0 && open()) {
        gather();
        feed.took(columns.rows());
        choose();
      }
    } catch (CorruptBatch e) {
      checkWhatHasLeft();
      throw e;
    }
    batch.setNumRows(columns.rows());
    return columns.rows() > 0;
  }

  private void beginAnew() throws MemoryTaken {
    checkWhatHasLeft();
    columns.clear();
    feed.finished(offset);
  }

  /**
   * Leaves out what the query's WHERE does not want, before Spark makes rows of it. Spark looks again at those
   * that are left, so that this may end where it leaves out too little to pay.
   */
  private void choose() throws MemoryTaken {
    if (conditions.isEmpty() || (looked > TRIED && wanted > looked / 2)) {
      return;
    }
    looked += columns.rows();
    columns.choose(conditions);
    wanted += columns.rows();
    if (columns.rows() == 0) {
      // It may be long until there is one, and what was left out must have been the log as well.
      beginAnew();
      Pause.checkCancelled();
    }
  }

  /** The rows of the last batch are gone to Spark: if their memory was reused meanwhile, the task must fail. */
  private void checkWhatHasLeft() throws MemoryTaken {
    if (!feed.intact()) {
      throw new MemoryTaken("the memory of " + id + " was reused while it was being read, before offset " + offset
          + "; the task reads it again, by pull");
    }
  }

  private void gather() throws IOException {
    while (offset < until && feed.hasBatch()) {
      long address = feed.address();
      if (columns.rows() > 0 && columns.rows() + RecordColumns.count(address) > ROWS) {
        return;
      }
      if (times.mayLieIn(address)) {
        columns.add(address, feed.size(), offset, until);
      }
      offset = RecordBatch.nextOffset(address);
      feed.pass();
    }
  }

  /** False at the end of the range, when what is left of it holds no records. */
  private boolean open() throws IOException {
    if (opened && feed.hasBatch()) {
      return true;
    }
    long deadline = System.nanoTime() + patienceMs * 1_000_000;
    while (offset < until) {
      try {
        opened = feed.open(offset);
        if (opened) {
          return true;
        }
        if (feed.barrenUntil() >= until) {
          return false;
        }
      } catch (KafkaError e) {
        if (e.code != KafkaError.OFFSET_OUT_OF_RANGE) {
          throw e;
        }
        offset = DataLoss.skip(cluster, id, offset, until, failOnDataLoss);
        continue;
      }
      if (System.nanoTime() > deadline) {
        throw new IOException(new TimeoutException("Cannot fetch offset " + offset + " of " + id + " within "
            + patienceMs + " ms (option kafkaConsumer.pollTimeoutMs)"));
      }
      Pause.millis(1);
    }
    return false;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  /** The offset of a row of the batch at hand. */
  long offset(int row) {
    return columns.offset(row);
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return Metrics.of(List.of(feed));
  }

  @Override
  public void close() throws IOException {
    try {
      checkWhatHasLeft();
      feed.finished(offset);
    } finally {
      totals.add(feed);
      feed.close();
      columns.close();
    }
  }
}
