package io.penstock.spark;

import io.penstock.client.TopicPartition;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.CompositeReadLimit;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.ReadMinRows;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** A streaming query's source at the driver. */
final class PenstockStream
    implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode, ReportsSourceMetrics {
  private final SourceOptions options;
  private final StructType schema;
  private final LogOffsets log;
  private final InitialOffsets initial;
  private final Totals totals = new Totals();
  private Map<TopicPartition, Long> latest = Map.of();
  private Map<TopicPartition, Long> stopAt;
  private long lastTriggerNanos = System.nanoTime();
  private boolean realTime;

  PenstockStream(SourceOptions options, StructType schema, String checkpoint) {
    this.options = options;
    this.schema = schema;
    this.log = new LogOffsets(options);
    this.initial = new InitialOffsets(checkpoint);
  }

  @Override
  public Offset initialOffset() {
    return initial.readOr(() -> new PartitionOffsets(log.start(log.partitionsThatMustBe())));
  }

  @Override
  public Offset deserializeOffset(String json) {
    return PartitionOffsets.parse(json);
  }

  // How much to read

  @Override
  public ReadLimit getDefaultReadLimit() {
    List<ReadLimit> limits = new ArrayList<>();
    if (options.minOffsets != null) {
      limits.add(ReadLimit.minRows(options.minOffsets, options.maxTriggerDelayMs));
    }
    if (options.maxOffsets != null) {
      limits.add(ReadLimit.maxRows(options.maxOffsets));
    }
    if (options.maxBytes != null) {
      limits.add(ReadLimit.maxBytes(options.maxBytes));
    }
    if (limits.isEmpty()) {
      return ReadLimit.allAvailable();
    }
    return limits.size() == 1 ? limits.get(0) : ReadLimit.compositeLimit(limits.toArray(new ReadLimit[0]));
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    stopAt = log.latest(log.partitions());
  }

  @Override
  public Offset latestOffset() {
    latest = log.latest(log.partitions());
    return new PartitionOffsets(latest);
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    Map<TopicPartition, Long> from = PartitionOffsets.of(start);
    latest = stopAt != null ? stopAt : log.latest(log.partitions());
    Map<TopicPartition, Long> until = latest;
    reportGone(from, until.keySet());
    ReadLimit[] limits = limit instanceof CompositeReadLimit all ? all.getReadLimits() : new ReadLimit[] {limit};
    for (ReadLimit each : limits) {
      if (each instanceof ReadMinRows least && stopAt == null && waitsFor(least, from, until)) {
        return start;
      }
    }
    for (ReadLimit each : limits) {
      if (each instanceof ReadMaxRows most) {
        until = share(most.maxRows(), from, until);
      } else if (each instanceof ReadMaxBytes most) {
        until = share(recordsIn(most.maxBytes()), from, until);
      } else if (!(each instanceof ReadAllAvailable) && !(each instanceof ReadMinRows)) {
        throw new UnsupportedOperationException("a read limit of another kind: " + each);
      }
    }
    lastTriggerNanos = System.nanoTime();
    return new PartitionOffsets(until);
  }

  private void reportGone(Map<TopicPartition, Long> from, Set<TopicPartition> now) {
    Set<TopicPartition> gone = new HashSet<>(from.keySet());
    gone.removeAll(now);
    if (!gone.isEmpty()) {
      DataLoss.report(options.failOnDataLoss, gone + " are gone.");
    }
  }

  private boolean waitsFor(ReadMinRows least, Map<TopicPartition, Long> from, Map<TopicPartition, Long> until) {
    long waitedMs = (System.nanoTime() - lastTriggerNanos) / 1_000_000;
    if (waitedMs > least.maxTriggerDelayMs()) {
      return false;
    }
    long fresh = 0;
    for (Map.Entry<TopicPartition, Long> end : until.entrySet()) {
      fresh += Math.max(0, end.getValue() - from.getOrDefault(end.getKey(), 0L));
    }
    return fresh < least.minRows();
  }

  /** Shares so many records out over the partitions, each in proportion to what it has. */
  private Map<TopicPartition, Long> share(
      long records, Map<TopicPartition, Long> from, Map<TopicPartition, Long> until) {
    Map<TopicPartition, Long> begins = new HashMap<>(from);
    Set<TopicPartition> fresh = new HashSet<>(until.keySet());
    fresh.removeAll(from.keySet());
    begins.putAll(log.earliest(fresh));
    double total = 0;
    for (Map.Entry<TopicPartition, Long> end : until.entrySet()) {
      total += Math.max(0, end.getValue() - begins.get(end.getKey()));
    }
    if (total <= records) {
      return until;
    }
    Map<TopicPartition, Long> shared = new TreeMap<>();
    for (Map.Entry<TopicPartition, Long> end : until.entrySet()) {
      long begin = begins.get(end.getKey());
      long size = end.getValue() - begin;
      if (size <= 0) {
        shared.put(end.getKey(), end.getValue());
        continue;
      }
      double part = records * (size / total);
      // A small partition must not starve beside a large one.
      long whole = (long) (part < 1 ? Math.ceil(part) : Math.floor(part));
      shared.put(end.getKey(), Math.min(end.getValue(), begin + whole));
    }
    return shared;
  }

  /** Offsets say nothing of bytes; the average of what the query has read so far does. */
  private long recordsIn(long bytes) {
    double average = totals.records() == 0 ? 100 : Math.max(1, (double) totals.bytes() / totals.records());
    return Math.max(1, (long) (bytes / average));
  }

  // Planning

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    Map<TopicPartition, Long> until = PartitionOffsets.of(end);
    Map<TopicPartition, Long> from = withNew(PartitionOffsets.of(start), until.keySet());
    List<OffsetRange> ranges = new ArrayList<>();
    until.forEach((id, last) -> {
      long first = from.get(id);
      if (last < first) {
        DataLoss.report(options.failOnDataLoss,
            "The offset of " + id + " went back from " + first + " to " + last + ".");
        return;
      }
      ranges.add(new OffsetRange(id, first, last));
    });
    return RangePlan.partitions(log.cluster(), ranges, options);
  }

  /** Partitions that were added since then begin with their first record. */
  private Map<TopicPartition, Long> withNew(Map<TopicPartition, Long> known, Set<TopicPartition> now) {
    Map<TopicPartition, Long> from = new TreeMap<>(known);
    Set<TopicPartition> fresh = new HashSet<>(now);
    fresh.removeAll(known.keySet());
    log.earliest(fresh).forEach((id, earliest) -> {
      if (earliest > 0) {
        DataLoss.report(options.failOnDataLoss,
            "The new partition " + id + " begins at " + earliest + " and not at 0.");
      }
      from.put(id, earliest);
    });
    return from;
  }

  // Real time

  @Override
  public void prepareForRealTimeMode() {
    realTime = true;
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    Set<TopicPartition> now = log.partitions();
    Map<TopicPartition, Long> from = withNew(withoutLost(PartitionOffsets.of(start), now), now);
    return FollowPlan.partitions(log.cluster(), from, options);
  }

  private Map<TopicPartition, Long> withoutLost(Map<TopicPartition, Long> from, Set<TopicPartition> now) {
    reportGone(from, now);
    Map<TopicPartition, Long> left = new TreeMap<>(from);
    left.keySet().retainAll(now);
    return left;
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] parts) {
    Map<TopicPartition, Long> merged = new TreeMap<>();
    for (PartitionOffset part : parts) {
      merged.putAll(((FollowReader.Followed) part).offsets());
    }
    return new PartitionOffsets(merged);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new ReaderFactory(options, schema, totals, SparkContext.getOrCreate().appName());
  }

  // Progress

  @Override
  public Offset reportLatestOffset() {
    return latest.isEmpty() ? null : new PartitionOffsets(latest);
  }

  @Override
  public Map<String, String> metrics(Optional<Offset> consumed) {
    Map<String, String> metrics = new LinkedHashMap<>();
    if (realTime) {
      // Planned once per batch, which lasts minutes: what was the latest then is old now.
      latest = log.latest(log.partitions());
    }
    if (consumed.isPresent() && !latest.isEmpty()) {
      Map<TopicPartition, Long> done = PartitionOffsets.of(consumed.get());
      long least = Long.MAX_VALUE;
      long most = 0;
      double sum = 0;
      for (Map.Entry<TopicPartition, Long> end : latest.entrySet()) {
        long behind = Math.max(0, end.getValue() - done.getOrDefault(end.getKey(), 0L));
        least = Math.min(least, behind);
        most = Math.max(most, behind);
        sum += behind;
      }
      metrics.put("minOffsetsBehindLatest", Long.toString(least));
      metrics.put("maxOffsetsBehindLatest", Long.toString(most));
      metrics.put("avgOffsetsBehindLatest", Double.toString(sum / latest.size()));
    }
    metrics.putAll(totals.shown());
    return metrics;
  }

  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {}

  @Override
  public String toString() {
    return "Penstock " + options.topics;
  }
}
