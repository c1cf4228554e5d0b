package io.penstock.spark;

import io.penstock.client.Extent;
import io.penstock.client.TopicPartition;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.types.StructType;

/** A batch query over a range of offsets or of time, fixed when it is planned. */
final class PenstockBatch implements Batch {
  private final SourceOptions options;
  private final StructType schema;
  private final LogOffsets log;
  private final Pruning pruning;
  private final Summary summary;
  private List<OffsetRange> ranges;
  private Map<TopicPartition, Extent> extents;
  private InputPartition[] planned;

  /** With a summary it reads no records, only counts them; without, summary is null. */
  PenstockBatch(SourceOptions options, StructType schema, Pruning pruning, Summary summary) {
    this.pruning = pruning;
    this.summary = summary;
    this.options = options;
    this.schema = schema;
    this.log = new LogOffsets(options);
  }

  /** Once: Spark asks again whenever it copies a plan, and a range must not grow between two looks at it. */
  @Override
  public synchronized InputPartition[] planInputPartitions() {
    if (planned == null) {
      planned = RangePlan.partitions(log.cluster(), ranges(), options);
    }
    return planned;
  }

  private synchronized List<OffsetRange> ranges() {
    if (ranges == null) {
      ranges = pruning.prune(wanted(), log.cluster());
    }
    return ranges;
  }

  private List<OffsetRange> wanted() {
    Set<TopicPartition> partitions = log.partitionsThatMustBe();
    Map<TopicPartition, Long> starts = log.start(partitions);
    Map<TopicPartition, Long> ends = log.end(partitions);
    List<OffsetRange> wanted = new ArrayList<>();
    starts.forEach((id, from) -> {
      long until = ends.get(id);
      if (until < from) {
        throw new IllegalArgumentException("The ending offset " + until + " of " + id
            + " lies before its starting offset " + from);
      }
      wanted.add(new OffsetRange(id, from, until));
    });
    return wanted;
  }

  /** Asked after the ranges are known: a log that was cut or cleaned meanwhile shows as not dense. */
  private synchronized Map<TopicPartition, Extent> extents() {
    List<TopicPartition> partitions = ranges().stream().map(OffsetRange::partition).toList();
    if (extents == null) {
      try {
        extents = log.cluster().extents(partitions);
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
    return extents;
  }

  /** The parts that a summary is made of, if offsets alone tell; else null, and tasks have to look. */
  List<Summary.Part> knownParts() {
    List<Summary.Part> parts = new ArrayList<>();
    for (OffsetRange range : ranges()) {
      Extent extent = extents().get(range.partition());
      if (extent == null || !extent.isDense(range.from(), range.until())) {
        return null;
      }
      parts.add(new Summary.Part(range.partition(), range.size(), range.from(), range.until() - 1));
    }
    return parts;
  }

  /**
   * What it has at most: a row for each offset, and all the bytes of the partitions it reads from. Too large
   * rather than too small, since Spark sends to every executor what it takes for small.
   */
  Statistics statistics() {
    long rows = 0;
    long bytes = 0;
    for (OffsetRange range : ranges()) {
      Extent extent = extents().get(range.partition());
      if (extent == null || extent.bytes() < 0) {
        return RowsAndBytes.UNKNOWN;
      }
      rows += range.size();
      bytes += extent.bytes();
    }
    return RowsAndBytes.of(rows, bytes, schema);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    String application = SparkContext.getOrCreate().appName();
    return new ReaderFactory(
        options, schema, new Totals(), application, pruning.times(), pruning.conditions(), summary);
  }
}
