package io.penstock.spark;

import io.penstock.record.RecordBatch;
import java.io.Serializable;

/**
 * The milliseconds, both included, that a query's WHERE leaves of time. Whole batches are passed over where
 * their header proves that none of their records lies between: it has the largest timestamp, and that is
 * everyone's if the broker stamped it. Of the least it says nothing.
 */
record TimeBounds(long since, long until) implements Serializable {
  static final TimeBounds ALWAYS = new TimeBounds(Long.MIN_VALUE, Long.MAX_VALUE);

  TimeBounds notBefore(long millis) {
    return new TimeBounds(Math.max(since, millis), until);
  }

  TimeBounds notAfter(long millis) {
    return new TimeBounds(since, Math.min(until, millis));
  }

  boolean mayLieIn(long batch) {
    long largest = RecordBatch.maxTimestamp(batch);
    return largest >= since && (largest <= until || !RecordBatch.hasAppendTime(batch));
  }
}
