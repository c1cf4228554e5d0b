package io.penstock.spark;

import io.penstock.client.TopicPartition;
import java.util.ArrayList;
import java.util.List;

/** A run of offsets of one partition, the last one excluded. */
record OffsetRange(TopicPartition partition, long from, long until) {

  long size() {
    return until - from;
  }

  /** Splits ranges so that there are about as many as wanted, and none is larger than allowed. */
  static List<OffsetRange> split(List<OffsetRange> ranges, Integer least, Long mostRecords) {
    List<OffsetRange> small = new ArrayList<>();
    for (OffsetRange range : ranges) {
      if (range.size() > 0) {
        long parts = mostRecords == null ? 1 : (range.size() + mostRecords - 1) / mostRecords;
        range.cut(parts, small);
      }
    }
    if (least == null || small.size() >= least) {
      return small;
    }
    double total = small.stream().mapToLong(OffsetRange::size).sum();
    List<OffsetRange> smaller = new ArrayList<>();
    for (OffsetRange range : small) {
      range.cut(Math.max(1, Math.round(range.size() / total * least)), smaller);
    }
    return smaller;
  }

  private void cut(long parts, List<OffsetRange> into) {
    long start = from;
    for (long left = parts; left > 0; left--) {
      long end = start + (until - start) / left;
      if (end > start) {
        into.add(new OffsetRange(partition, start, end));
      }
      start = end;
    }
  }
}
