package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.TopicPartition;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;

/** The driver's view: which partitions a query reads, and where they begin and end. */
final class LogOffsets {
  private final SourceOptions options;
  private final Cluster cluster;

  LogOffsets(SourceOptions options) {
    this.options = options;
    this.cluster = Cluster.of(options.settings);
  }

  Cluster cluster() {
    return cluster;
  }

  /** The partitions as of now; a named topic that doesn't exist is left out. */
  Set<TopicPartition> partitions() {
    SourceOptions.Topics topics = options.topics;
    try {
      if (topics.names != null) {
        return cluster.metadata(topics.names).partitions().keySet();
      }
      if (topics.pattern != null) {
        Pattern pattern = Pattern.compile(topics.pattern);
        Set<TopicPartition> matching = new TreeSet<>();
        cluster.metadata(null).partitions().forEach((id, partition) -> {
          if (!partition.internal() && pattern.matcher(id.topic()).matches()) {
            matching.add(id);
          }
        });
        return matching;
      }
      List<String> names = topics.assigned.stream().map(TopicPartition::topic).distinct().toList();
      Set<TopicPartition> assigned = new TreeSet<>(topics.assigned);
      assigned.retainAll(cluster.metadata(names).partitions().keySet());
      return assigned;
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** The same at a query's start, where something that is missing is a mistake. */
  Set<TopicPartition> partitionsThatMustBe() {
    Set<TopicPartition> partitions = partitions();
    List<String> missing = new ArrayList<>();
    SourceOptions.Topics topics = options.topics;
    if (topics.names != null) {
      missing.addAll(topics.names);
      partitions.forEach(id -> missing.remove(id.topic()));
    } else if (topics.assigned != null) {
      topics.assigned.stream().filter(id -> !partitions.contains(id)).forEach(id -> missing.add(id.toString()));
    }
    if (!missing.isEmpty()) {
      throw new IllegalStateException("Unknown topic or partition " + missing + " at "
          + options.settings.servers() + ": create it first, or correct the option");
    }
    return partitions;
  }

  Map<TopicPartition, Long> earliest(Collection<TopicPartition> partitions) {
    return offsets(partitions, Cluster.EARLIEST);
  }

  Map<TopicPartition, Long> latest(Collection<TopicPartition> partitions) {
    return offsets(partitions, Cluster.LATEST);
  }

  private Map<TopicPartition, Long> offsets(Collection<TopicPartition> partitions, long time) {
    Map<TopicPartition, Long> times = new HashMap<>();
    partitions.forEach(id -> times.put(id, time));
    return offsets(times);
  }

  private Map<TopicPartition, Long> offsets(Map<TopicPartition, Long> times) {
    try {
      return cluster.offsets(times);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  Map<TopicPartition, Long> start(Set<TopicPartition> partitions) {
    return resolve(options.starting, "starting", partitions, options.latestIfNoTimestamp);
  }

  Map<TopicPartition, Long> end(Set<TopicPartition> partitions) {
    return resolve(options.ending, "ending", partitions, true);
  }

  private Map<TopicPartition, Long> resolve(
      SourceOptions.Starting at, String which, Set<TopicPartition> partitions, boolean latestIfNone) {
    if (at.everywhere != null) {
      return offsets(partitions, at.everywhere);
    }
    if (at.timestamp != null) {
      return atTimes(options.everywhere(partitions, at.timestamp), latestIfNone);
    }
    Map<TopicPartition, Long> given = at.timestamps != null ? at.timestamps : at.offsets;
    if (!given.keySet().equals(partitions)) {
      String option = which + (at.timestamps != null ? "OffsetsByTimestamp" : "Offsets");
      throw new IllegalArgumentException("If " + option + " is given per partition, it must name every partition"
          + (at.timestamps != null ? "" : " (use -1 for latest, -2 for earliest)")
          + ". Given: " + given.keySet() + ", to be read: " + partitions);
    }
    if (at.timestamps != null) {
      return atTimes(given, latestIfNone);
    }
    Map<TopicPartition, Long> special = new HashMap<>(given);
    special.values().removeIf(offset -> offset >= 0);
    Map<TopicPartition, Long> resolved = new TreeMap<>(given);
    resolved.putAll(offsets(special));
    return resolved;
  }

  private Map<TopicPartition, Long> atTimes(Map<TopicPartition, Long> times, boolean latestIfNone) {
    Map<TopicPartition, Long> found = new TreeMap<>(offsets(times));
    Map<TopicPartition, Long> none = new HashMap<>(found);
    none.values().removeIf(offset -> offset >= 0);
    if (!none.isEmpty() && !latestIfNone) {
      TopicPartition first = new TreeSet<>(none.keySet()).first();
      throw new IllegalArgumentException("No offset matched from request of " + first + " and timestamp "
          + times.get(first) + ". Set startingOffsetsByTimestampStrategy to 'latest' to begin at its end.");
    }
    found.putAll(latest(none.keySet()));
    return found;
  }
}
