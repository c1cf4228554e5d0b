package io.penstock.spark;

import io.penstock.client.Feed;
import java.util.List;
import java.util.function.ToLongFunction;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** A scan's figures in Spark's UI. Spark makes the metrics by their class names, hence the public classes. */
public final class Metrics {
  private Metrics() {}

  static CustomMetric[] all() {
    return new CustomMetric[] {new PushRecords(), new PushBytes(), new PullRecords(), new PullBytes()};
  }

  static CustomTaskMetric[] of(List<Feed> feeds) {
    return new CustomTaskMetric[] {
      value("pushRecords", feeds, Feed::pushRecords),
      value("pushBytes", feeds, Feed::pushBytes),
      value("pullRecords", feeds, Feed::pullRecords),
      value("pullBytes", feeds, Feed::pullBytes),
    };
  }

  private static CustomTaskMetric value(String name, List<Feed> feeds, ToLongFunction<Feed> figure) {
    long sum = 0;
    for (Feed feed : feeds) {
      sum += figure.applyAsLong(feed);
    }
    return new Value(name, sum);
  }

  private record Value(String name, long value) implements CustomTaskMetric {}

  /** Records read from shared memory. */
  public static final class PushRecords extends CustomSumMetric {
    @Override
    public String name() {
      return "pushRecords";
    }

    @Override
    public String description() {
      return "records read by push";
    }
  }

  /** Bytes read from shared memory. */
  public static final class PushBytes extends CustomSumMetric {
    @Override
    public String name() {
      return "pushBytes";
    }

    @Override
    public String description() {
      return "bytes read by push";
    }
  }

  /** Records read by Fetch. */
  public static final class PullRecords extends CustomSumMetric {
    @Override
    public String name() {
      return "pullRecords";
    }

    @Override
    public String description() {
      return "records read by pull";
    }
  }

  /** Bytes read by Fetch. */
  public static final class PullBytes extends CustomSumMetric {
    @Override
    public String name() {
      return "pullBytes";
    }

    @Override
    public String description() {
      return "bytes read by pull";
    }
  }
}
