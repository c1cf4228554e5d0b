package io.penstock.spark;

import io.penstock.client.TopicPartition;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/** A batch query over a range of offsets or of time, fixed when it is planned. */
final class PenstockBatch implements Batch {
  private final SourceOptions options;
  private final StructType schema;
  private final LogOffsets log;
  private final Pruning pruning;
  private List<OffsetRange> ranges;
  private InputPartition[] planned;

  PenstockBatch(SourceOptions options, StructType schema, Pruning pruning) {
    this.pruning = pruning;
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

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new ReaderFactory(options, schema, new Totals(), SparkContext.getOrCreate().appName());
  }
}
