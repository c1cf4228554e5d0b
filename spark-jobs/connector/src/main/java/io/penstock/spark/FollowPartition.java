package io.penstock.spark;

import io.penstock.client.Location;
import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/** The partitions that one real-time task follows, and from where. */
record FollowPartition(List<Start> starts) implements InputPartition {

  /** A partition and its first offset. */
  record Start(Location location, long from) implements java.io.Serializable {}

  @Override
  public String[] preferredLocations() {
    return starts.stream().map(start -> start.location().machine()).distinct().toArray(String[]::new);
  }
}
