package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.Location;
import io.penstock.client.TopicPartition;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.internal.SQLConf;

/**
 * Deals partitions out to real-time tasks. Such a task holds its slot for as long as the batch lasts, so a
 * partition whose task found no slot would not be read at all: no more tasks than slots, each with several
 * partitions if need be.
 */
final class FollowPlan {
  private FollowPlan() {}

  static InputPartition[] partitions(Cluster cluster, Map<TopicPartition, Long> from, SourceOptions options) {
    Map<TopicPartition, Location> locations;
    try {
      locations = cluster.locate(from.keySet());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    // In the order of their leaders, so that a task's partitions mostly lie on one node.
    List<FollowPartition.Start> starts = new ArrayList<>();
    from.forEach((id, offset) -> starts.add(new FollowPartition.Start(locations.get(id), offset)));
    starts.sort(Comparator.comparingInt(start -> start.location().brokerId()));
    int tasks = Math.max(1, Math.min(starts.size(), tasks(options)));
    List<List<FollowPartition.Start>> shares = new ArrayList<>();
    for (int task = 0; task < tasks; task++) {
      int first = (int) ((long) starts.size() * task / tasks);
      int last = (int) ((long) starts.size() * (task + 1) / tasks);
      shares.add(new ArrayList<>(starts.subList(first, last)));
    }
    return shares.stream().map(FollowPartition::new).toArray(InputPartition[]::new);
  }

  /** A shuffle in the query needs slots of its own, and Spark refuses to start without them. */
  private static int tasks(SourceOptions options) {
    if (options.realTimeTasks != null) {
      return options.realTimeTasks;
    }
    int slots = SparkContext.getOrCreate().defaultParallelism();
    int shuffled = SQLConf.get().numShufflePartitions();
    return shuffled < slots ? slots - shuffled : slots;
  }
}
