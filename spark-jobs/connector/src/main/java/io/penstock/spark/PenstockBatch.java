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

  PenstockBatch(SourceOptions options, StructType schema, Pruning pruning) {
    this.pruning = pruning;
    this.options = options;
    this.schema = schema;
    this.log = new LogOffsets(options);
  }

  @Override
  public InputPartition[] planInputPartitions() {
    Set<TopicPartition> partitions = log.partitionsThatMustBe();
    Map<TopicPartition, Long> starts = log.start(partitions);
    Map<TopicPartition, Long> ends = log.end(partitions);
    List<OffsetRange> ranges = new ArrayList<>();
    starts.forEach((id, from) -> {
      long until = ends.get(id);
      if (until < from) {
        throw new IllegalArgumentException("The ending offset " + until + " of " + id
            + " lies before its starting offset " + from);
      }
      ranges.add(new OffsetRange(id, from, until));
    });
    return RangePlan.partitions(log.cluster(), pruning.prune(ranges, log.cluster()), options);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new ReaderFactory(options, schema, new Totals(), SparkContext.getOrCreate().appName());
  }
}
