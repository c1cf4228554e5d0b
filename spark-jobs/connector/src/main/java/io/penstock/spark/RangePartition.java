package io.penstock.spark;

import io.penstock.client.Location;
import org.apache.spark.sql.connector.read.InputPartition;

/** One task's share of a batch or micro-batch: a range of offsets, and where the driver found them. */
record RangePartition(Location location, long from, long until) implements InputPartition {
  @Override
  public String[] preferredLocations() {
    return new String[] {location.machine()};
  }
}
