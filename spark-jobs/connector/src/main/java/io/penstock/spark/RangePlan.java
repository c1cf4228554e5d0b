package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.Location;
import io.penstock.client.TopicPartition;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;

/** Cuts ranges of offsets into tasks and says where each is best run. */
final class RangePlan {
  private RangePlan() {}

  static InputPartition[] partitions(Cluster cluster, List<OffsetRange> ranges, SourceOptions options) {
    List<OffsetRange> parts = OffsetRange.split(ranges, options.minPartitions, options.maxRecordsPerPartition);
    try {
      List<TopicPartition> ids = parts.stream().map(OffsetRange::partition).distinct().toList();
      Map<TopicPartition, Location> locations = cluster.locate(ids);
      return parts.stream()
          .map(part -> new RangePartition(locations.get(part.partition()), part.from(), part.until()))
          .toArray(InputPartition[]::new);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}
