package io.penstock.client;

import java.io.Serializable;

/**
 * What a partition's leader says of its log.
 *
 * @param denseFrom from here on every offset has its record: no compaction, no gap, no marker
 * @param highWatermark behind the last record that may be read
 * @param bytes all of its batches as they lie in the log
 */
public record Extent(long denseFrom, long highWatermark, long bytes) implements Serializable {
  public boolean isDense(long from, long until) {
    return from >= denseFrom && until <= highWatermark;
  }
}
