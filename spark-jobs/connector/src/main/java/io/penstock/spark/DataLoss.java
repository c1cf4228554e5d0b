package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.TopicPartition;
import java.io.IOException;
import java.util.Map;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What to do when records that a query should read are not there: the option failOnDataLoss. */
final class DataLoss {
  private static final Logger LOG = LoggerFactory.getLogger(DataLoss.class);

  private DataLoss() {}

  /** The offset to go on with when a broker says that this one is out of its range. */
  static long skip(Cluster cluster, TopicPartition id, long offset, long until, boolean fail) throws IOException {
    long earliest = cluster.offsets(Map.of(id, Cluster.EARLIEST)).get(id);
    long latest = cluster.offsets(Map.of(id, Cluster.LATEST)).get(id);
    report(fail, "Offset " + offset + " of " + id + " is not there; the log has " + earliest + " to " + latest + ".");
    return offset < earliest ? Math.min(earliest, until) : Math.min(latest, until);
  }

  static void report(boolean fail, String what) {
    String message = what + " Some data may have been lost: it was aged out, or the topic was deleted, before"
        + " the query had read it.";
    if (fail) {
      throw new IllegalStateException(message
          + " If the query should go on in such cases, set the source option \"failOnDataLoss\" to \"false\".");
    }
    LOG.warn("{}", message);
  }
}
