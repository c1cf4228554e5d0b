package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.Feed;
import io.penstock.client.TopicPartition;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.types.StructType;

/** A real-time task: follows its partitions in turn and hands each record on at once. */
final class FollowReader implements SupportsRealTimeRead<InternalRow> {
  private static final int IDLES_PER_CHECK = 64;
  private static final RecordStatus RECORD = RecordStatus.newStatusWithoutArrivalTime(true);
  private static final RecordStatus NONE = RecordStatus.newStatusWithoutArrivalTime(false);

  /** How far each of the task's partitions is. */
  record Followed(Map<TopicPartition, Long> offsets) implements PartitionOffset {}

  private final List<Follower> followers = new ArrayList<>();
  private final List<Feed> feeds = new ArrayList<>();
  private final Totals totals;
  private final IdleStrategy idle;
  private int turn;
  private InternalRow row;

  FollowReader(FollowPartition partition, StructType schema, SourceOptions options, Totals totals, String label) {
    Cluster cluster = Cluster.of(options.settings);
    this.totals = totals;
    this.idle = options.idleStrategy.make();
    for (FollowPartition.Start start : partition.starts()) {
      Feed feed = new Feed(cluster, start.location(), options.mode, label, false, Long.MAX_VALUE);
      feeds.add(feed);
      followers.add(new Follower(cluster, feed, start.from(), schema, options.failOnDataLoss));
    }
  }

  @Override
  public RecordStatus nextWithTimeout(Long timeoutMs) throws IOException {
    if (followers.get(turn).hasRows() || look()) {
      row = followers.get(turn).take();
      return RECORD;
    }
    return await(System.nanoTime() + timeoutMs * 1_000_000);
  }

  /** Goes round once, beginning behind the partition whose turn it was; leaves the turn where rows are. */
  private boolean look() throws IOException {
    for (int i = 0; i < followers.size(); i++) {
      turn = turn + 1 < followers.size() ? turn + 1 : 0;
      if (followers.get(turn).ready()) {
        return true;
      }
    }
    return false;
  }

  private RecordStatus await(long deadline) throws IOException {
    int idles = 0;
    while (!look()) {
      if (System.nanoTime() >= deadline) {
        return NONE;
      }
      // Without this a task would outlive the query's stop().
      if (++idles % IDLES_PER_CHECK == 0) {
        Pause.checkCancelled();
      }
      idle.idle();
    }
    idle.reset();
    row = followers.get(turn).take();
    return RECORD;
  }

  @Override
  public boolean next() {
    throw new UnsupportedOperationException("a real-time reader is asked with a timeout");
  }

  @Override
  public InternalRow get() {
    return row;
  }

  @Override
  public PartitionOffset getOffset() {
    Map<TopicPartition, Long> offsets = new TreeMap<>();
    followers.forEach(follower -> offsets.put(follower.feed.partition(), follower.position()));
    return new Followed(offsets);
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return Metrics.of(feeds);
  }

  @Override
  public void close() {
    for (Follower follower : followers) {
      totals.add(follower.feed);
      follower.close();
    }
  }
}
