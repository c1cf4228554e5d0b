package io.penstock.spark;

import io.penstock.client.Feed;
import java.io.Serializable;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.util.LongAccumulator;

/** What all tasks of a query have read, by push and by pull, summed up at the driver. */
final class Totals implements Serializable {
  private static final long serialVersionUID = 1L;

  private final LongAccumulator pushRecords = accumulator("penstock.pushRecords");
  private final LongAccumulator pushBytes = accumulator("penstock.pushBytes");
  private final LongAccumulator pullRecords = accumulator("penstock.pullRecords");
  private final LongAccumulator pullBytes = accumulator("penstock.pullBytes");
  private final LongAccumulator changes = accumulator("penstock.changeOvers");

  private static LongAccumulator accumulator(String name) {
    LongAccumulator accumulator = new LongAccumulator();
    accumulator.register(SparkContext.getOrCreate(), scala.Option.apply(name), false);
    return accumulator;
  }

  /** Once for each feed, when its task is done with it. */
  void add(Feed feed) {
    pushRecords.add(feed.pushRecords());
    pushBytes.add(feed.pushBytes());
    pullRecords.add(feed.pullRecords());
    pullBytes.add(feed.pullBytes());
    changes.add(feed.changes());
  }

  long records() {
    return pushRecords.sum() + pullRecords.sum();
  }

  long bytes() {
    return pushBytes.sum() + pullBytes.sum();
  }

  Map<String, String> shown() {
    Map<String, String> shown = new LinkedHashMap<>();
    shown.put("pushRecords", Long.toString(pushRecords.sum()));
    shown.put("pushBytes", Long.toString(pushBytes.sum()));
    shown.put("pullRecords", Long.toString(pullRecords.sum()));
    shown.put("pullBytes", Long.toString(pullBytes.sum()));
    shown.put("changeOvers", Long.toString(changes.sum()));
    return shown;
  }
}
