package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.Feed;
import io.penstock.client.KafkaError;
import io.penstock.record.Arena;
import io.penstock.record.RecordBatch;
import io.penstock.record.RecordColumns;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Follows one partition in real time. A row that has left can't be called back, and real-time tasks should
 * not fail over recycled memory: so batches are copied, then checked, then emitted row by row.
 */
final class Follower {
  /** How much is copied at once, so that a task's other partitions get their turn. */
  private static final long MOST_BYTES = 1 << 17;
  private static final int MOST_BATCHES = 64;

  private final Cluster cluster;
  final Feed feed;
  private final boolean failOnDataLoss;
  private final RecordColumns columns = new RecordColumns();
  private final Arena copies = new Arena();
  private final long[] addresses = new long[MOST_BATCHES];
  private final int[] sizes = new int[MOST_BATCHES];
  private final ColumnarBatch batch;
  private int row;
  private long next;
  private boolean opened;

  Follower(Cluster cluster, Feed feed, long from, StructType schema, boolean failOnDataLoss) {
    this.cluster = cluster;
    this.feed = feed;
    this.next = from;
    this.failOnDataLoss = failOnDataLoss;
    this.batch = Columns.over(columns, schema, feed.partition().topic(), feed.partition().partition());
  }

  boolean hasRows() {
    return row < columns.rows();
  }

  /** Whether there are rows, after a look at the log if need be. */
  boolean ready() throws IOException {
    return hasRows() || fill();
  }

  /** The next row, good until the one after it is asked for. */
  InternalRow take() {
    return batch.getRow(row++);
  }

  /** The offset of the next row that has not been emitted. */
  long position() {
    return hasRows() ? columns.offset(row) : next;
  }

  private boolean fill() throws IOException {
    try {
      // What is left of the piece at hand first: opening anew would fetch it a second time.
      opened = (opened && feed.hasBatch()) || feed.open(next);
      if (!opened) {
        return false;
      }
    } catch (KafkaError e) {
      if (e.code != KafkaError.OFFSET_OUT_OF_RANGE) {
        throw e;
      }
      opened = false;
      next = DataLoss.skip(cluster, feed.partition(), next, Long.MAX_VALUE, failOnDataLoss);
      return false;
    }
    feed.finished(next);
    int batches = copy();
    columns.clear();
    row = 0;
    if (!feed.intact()) {
      feed.lookAgain();
      opened = false;
      return false;
    }
    for (int i = 0; i < batches; i++) {
      columns.add(addresses[i], sizes[i], next, Long.MAX_VALUE);
      next = RecordBatch.nextOffset(addresses[i]);
    }
    batch.setNumRows(columns.rows());
    feed.took(columns.rows());
    return columns.rows() > 0;
  }

  private int copy() throws IOException {
    copies.clear();
    long bytes = 0;
    int batches = 0;
    while (batches < MOST_BATCHES && bytes < MOST_BYTES && feed.hasBatch()) {
      sizes[batches] = feed.size();
      addresses[batches] = copies.copyOf(feed.address(), feed.size());
      bytes += feed.size();
      batches++;
      feed.pass();
    }
    return batches;
  }

  void close() {
    feed.finished(position());
    feed.close();
    columns.close();
    copies.close();
  }
}
