package io.penstock.spark;

import io.penstock.client.Mode;
import io.penstock.client.Settings;
import io.penstock.client.TopicPartition;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What {@code .option(...)} said, checked: those of Spark's Kafka source, and Penstock's own. */
final class SourceOptions implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final Logger LOG = LoggerFactory.getLogger(SourceOptions.class);

  static final String SUBSCRIBE = "subscribe";
  static final String SUBSCRIBE_PATTERN = "subscribePattern";
  static final String ASSIGN = "assign";
  static final String FAIL_ON_DATA_LOSS = "failOnDataLoss";

  private static final Set<String> KNOWN = lowered(
      SUBSCRIBE, SUBSCRIBE_PATTERN, ASSIGN, FAIL_ON_DATA_LOSS,
      "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
      "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
      "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
      "minPartitions", "maxRecordsPerPartition", "includeHeaders", "groupIdPrefix",
      "mode", "valueType", "keyType", "idleStrategy", "realTimeTasks",
      "penstock.bootstrap.servers", "penstock.shm.dir",
      "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "path");

  /** The kafka.* options that mean something here. */
  private static final Set<String> HEEDED = lowered(
      "kafka.bootstrap.servers", "kafka.client.id", "kafka.socket.connection.setup.timeout.ms",
      "kafka.request.timeout.ms", "kafka.default.api.timeout.ms",
      "kafka.max.partition.fetch.bytes", "kafka.security.protocol", "kafka.isolation.level");

  /** The source sets these itself, as Spark's does. */
  private static final Set<String> REFUSED = lowered(
      "kafka.auto.offset.reset", "kafka.key.deserializer", "kafka.value.deserializer",
      "kafka.enable.auto.commit", "kafka.interceptor.classes");

  private static final Set<String> NAMED_IN_LOG = ConcurrentHashMap.newKeySet();
  private static final int DEFAULT_FETCH_BYTES = 4 << 20;
  /** Kafka's clients wait 10 s; until it is over nothing is read, and a living broker's kernel answers at once. */
  private static final int CONNECT_MS = 2_000;

  final Topics topics;
  final Settings settings;
  final Mode mode;
  final Starting starting;
  final Starting ending;
  final boolean endingGiven;
  final boolean latestIfNoTimestamp;
  final Long maxOffsets;
  final Long minOffsets;
  final Long maxBytes;
  final long maxTriggerDelayMs;
  final Integer minPartitions;
  final Long maxRecordsPerPartition;
  final boolean failOnDataLoss;
  final boolean headers;
  final DataType keyType;
  final DataType valueType;
  final IdleStrategy.Kind idleStrategy;
  final Integer realTimeTasks;
  final long pollTimeoutMs;

  SourceOptions(CaseInsensitiveStringMap options, boolean streaming) {
    checkNames(options);
    topics = Topics.of(options);
    mode = choice(options, "mode", Mode.class, Mode.AUTO);
    settings = settings(options, mode);
    String first = streaming ? Starting.LATEST : Starting.EARLIEST;
    starting = Starting.read(options, "starting", first);
    ending = Starting.read(options, "ending", Starting.LATEST);
    endingGiven = Starting.given(options, "ending");
    latestIfNoTimestamp = latestIfNoTimestamp(options);
    maxOffsets = positive(options, "maxOffsetsPerTrigger");
    minOffsets = positive(options, "minOffsetsPerTrigger");
    maxBytes = positive(options, "maxBytesPerTrigger");
    maxTriggerDelayMs = Durations.millis("maxTriggerDelay", options.getOrDefault("maxTriggerDelay", "15m"));
    Long partitions = positive(options, "minPartitions");
    minPartitions = partitions == null ? null : Math.toIntExact(partitions);
    maxRecordsPerPartition = positive(options, "maxRecordsPerPartition");
    failOnDataLoss = flag(options, FAIL_ON_DATA_LOSS, true);
    headers = flag(options, "includeHeaders", false);
    keyType = type(options, "keyType");
    valueType = type(options, "valueType");
    idleStrategy = choice(options, "idleStrategy", IdleStrategy.Kind.class, IdleStrategy.Kind.PARK);
    Long tasks = positive(options, "realTimeTasks");
    realTimeTasks = tasks == null ? null : Math.toIntExact(tasks);
    pollTimeoutMs = options.getLong("kafkaConsumer.pollTimeoutMs", 120_000);
    if (minOffsets != null && maxOffsets != null && minOffsets > maxOffsets) {
      throw new IllegalArgumentException("The value of minOffsetsPerTrigger(" + minOffsets
          + ") is higher than the maxOffsetsPerTrigger(" + maxOffsets + ").");
    }
    if (streaming && endingGiven) {
      throw new IllegalArgumentException("endingOffsets, endingTimestamp and endingOffsetsByTimestamp are not"
          + " valid in streaming queries; leave them out, or read with spark.read.");
    }
    if (!streaming) {
      starting.refuse("startingOffsets", Starting.LATEST_OFFSET, Starting.LATEST);
      ending.refuse("endingOffsets", Starting.EARLIEST_OFFSET, Starting.EARLIEST);
    }
  }

  private static Set<String> lowered(String... names) {
    Set<String> set = new TreeSet<>();
    Arrays.stream(names).forEach(name -> set.add(name.toLowerCase(Locale.ROOT)));
    return Set.copyOf(set);
  }

  private static void checkNames(CaseInsensitiveStringMap options) {
    for (Map.Entry<String, String> option : options.asCaseSensitiveMap().entrySet()) {
      String name = option.getKey().toLowerCase(Locale.ROOT);
      if (REFUSED.contains(name)) {
        throw new IllegalArgumentException("The option '" + option.getKey() + "' is not supported: the source"
            + " decides that itself. Remove it (for offsets use startingOffsets).");
      }
      if (name.startsWith("kafka.")) {
        if (!HEEDED.contains(name) && NAMED_IN_LOG.add(name)) {
          LOG.info("The option {} has no meaning for the penstock source and is ignored", option.getKey());
        }
      } else if (!KNOWN.contains(name)) {
        throw new IllegalArgumentException("Unknown option '" + option.getKey() + "' of the penstock source."
            + " Remove it or correct its name; known are " + new TreeSet<>(KNOWN) + " and kafka.*.");
      }
    }
  }

  static Settings settings(CaseInsensitiveStringMap options, Mode mode) {
    String servers = options.getOrDefault("penstock.bootstrap.servers", options.get("kafka.bootstrap.servers"));
    if (servers == null || servers.isBlank()) {
      throw new IllegalArgumentException("Option 'penstock.bootstrap.servers' (or 'kafka.bootstrap.servers')"
          + " must be specified, as host:port[,host:port]");
    }
    String security = options.getOrDefault("kafka.security.protocol", "PLAINTEXT");
    if (!security.equalsIgnoreCase("PLAINTEXT")) {
      throw new IllegalArgumentException("kafka.security.protocol=" + security
          + " is not supported by the penstock source; use PLAINTEXT, or format(\"kafka\")");
    }
    if (options.getOrDefault("kafka.isolation.level", "read_uncommitted").equalsIgnoreCase("read_committed")) {
      throw new IllegalArgumentException("kafka.isolation.level=read_committed is not supported by the penstock"
          + " source; leave it out, or use format(\"kafka\")");
    }
    return new Settings(
        servers,
        options.getOrDefault("kafka.client.id", "penstock-spark"),
        mode != Mode.PULL,
        options.get("penstock.shm.dir"),
        options.getLong("kafka.socket.connection.setup.timeout.ms", CONNECT_MS),
        options.getLong("kafka.request.timeout.ms", 30_000),
        options.getLong("kafka.default.api.timeout.ms", 60_000),
        options.getInt("kafka.max.partition.fetch.bytes", DEFAULT_FETCH_BYTES));
  }

  private static boolean latestIfNoTimestamp(CaseInsensitiveStringMap options) {
    String name = "startingOffsetsByTimestampStrategy";
    String given = options.getOrDefault(name, "error").toLowerCase(Locale.ROOT);
    if (!given.equals("error") && !given.equals("latest")) {
      throw new IllegalArgumentException(name + " must be 'error' or 'latest', not '" + given + "'");
    }
    return given.equals("latest");
  }

  private static Long positive(CaseInsensitiveStringMap options, String name) {
    String given = options.get(name);
    if (given == null) {
      return null;
    }
    try {
      long value = Long.parseLong(given.trim());
      if (value > 0) {
        return value;
      }
    } catch (NumberFormatException e) {
      // Falls through to the same words as a number that is not positive.
    }
    throw new IllegalArgumentException("Option '" + name + "' must be a positive whole number, not '" + given + "'");
  }

  static boolean flag(CaseInsensitiveStringMap options, String name, boolean otherwise) {
    String given = options.get(name);
    if (given == null) {
      return otherwise;
    }
    if (given.equalsIgnoreCase("true") || given.equalsIgnoreCase("false")) {
      return Boolean.parseBoolean(given);
    }
    throw new IllegalArgumentException("Option '" + name + "' must be true or false, not '" + given + "'");
  }

  static <E extends Enum<E>> E choice(CaseInsensitiveStringMap options, String name, Class<E> kind, E otherwise) {
    String given = options.get(name);
    if (given == null) {
      return otherwise;
    }
    List<String> choices = new ArrayList<>();
    for (E value : kind.getEnumConstants()) {
      if (value.name().equalsIgnoreCase(given.trim())) {
        return value;
      }
      choices.add(value.name().toLowerCase(Locale.ROOT));
    }
    throw new IllegalArgumentException("Option '" + name + "' must be one of " + choices + ", not '" + given + "'");
  }

  static DataType type(CaseInsensitiveStringMap options, String name) {
    switch (options.getOrDefault(name, "binary").toLowerCase(Locale.ROOT)) {
      case "binary":
        return DataTypes.BinaryType;
      case "string":
        return DataTypes.StringType;
      default:
        throw new IllegalArgumentException(
            "Option '" + name + "' must be binary or string, not '" + options.get(name) + "'");
    }
  }

  /** Where to start or end, as the options say it. */
  static final class Starting implements Serializable {
    private static final long serialVersionUID = 1L;
    static final String EARLIEST = "earliest";
    static final String LATEST = "latest";
    static final long LATEST_OFFSET = -1;
    static final long EARLIEST_OFFSET = -2;

    /** Exactly one of them is set. */
    final Long everywhere;
    final Map<TopicPartition, Long> offsets;
    final Long timestamp;
    final Map<TopicPartition, Long> timestamps;

    private Starting(
        Long everywhere, Map<TopicPartition, Long> offsets, Long time, Map<TopicPartition, Long> times) {
      this.everywhere = everywhere;
      this.offsets = offsets;
      this.timestamp = time;
      this.timestamps = times;
    }

    static boolean given(CaseInsensitiveStringMap options, String which) {
      return options.containsKey(which + "Offsets")
          || options.containsKey(which + "Timestamp")
          || options.containsKey(which + "OffsetsByTimestamp");
    }

    /** A timestamp goes before timestamps per partition, and these before offsets, as in Spark's source. */
    static Starting read(CaseInsensitiveStringMap options, String which, String otherwise) {
      String time = options.get(which + "Timestamp");
      if (time != null) {
        try {
          long millis = Long.parseLong(time.trim());
          if (millis >= 0) {
            return new Starting(null, null, millis, null);
          }
        } catch (NumberFormatException e) {
          // The same words as for a negative one.
        }
        throw new IllegalArgumentException(
            "Option '" + which + "Timestamp' must be milliseconds since 1970, not '" + time + "'");
      }
      String times = options.get(which + "OffsetsByTimestamp");
      if (times != null) {
        return new Starting(null, null, null, OffsetJson.read(times, which + "OffsetsByTimestamp"));
      }
      String offsets = options.getOrDefault(which + "Offsets", otherwise).trim();
      switch (offsets.toLowerCase(Locale.ROOT)) {
        case EARLIEST:
          return new Starting(EARLIEST_OFFSET, null, null, null);
        case LATEST:
          return new Starting(LATEST_OFFSET, null, null, null);
        default:
          return new Starting(null, OffsetJson.read(offsets, which + "Offsets"), null, null);
      }
    }

    void refuse(String option, long offset, String word) {
      boolean somewhere = offsets != null && offsets.containsValue(offset);
      if ((everywhere != null && everywhere == offset) || somewhere) {
        throw new IllegalArgumentException(option + " can't be " + word + " (" + offset
            + ") in a batch query: give offsets, a timestamp, or leave it out");
      }
    }
  }

  /** Which partitions to read. */
  static final class Topics implements Serializable {
    private static final long serialVersionUID = 1L;
    final List<String> names;
    final String pattern;
    final Set<TopicPartition> assigned;

    private Topics(List<String> names, String pattern, Set<TopicPartition> assigned) {
      this.names = names;
      this.pattern = pattern;
      this.assigned = assigned;
    }

    static Topics of(CaseInsensitiveStringMap options) {
      List<String> given = new ArrayList<>();
      for (String name : List.of(SUBSCRIBE, SUBSCRIBE_PATTERN, ASSIGN)) {
        if (options.containsKey(name)) {
          given.add(name);
        }
      }
      if (given.size() != 1) {
        throw new IllegalArgumentException((given.isEmpty() ? "None" : "More than one (" + given + ")")
            + " of the options 'subscribe', 'subscribePattern' and 'assign' is given: exactly one says what"
            + " to read");
      }
      String value = options.get(given.get(0));
      switch (given.get(0)) {
        case SUBSCRIBE:
          List<String> names = Arrays.stream(value.split(",")).map(String::trim).filter(n -> !n.isEmpty()).toList();
          if (names.isEmpty()) {
            throw new IllegalArgumentException("No topics to subscribe to in option 'subscribe': '" + value + "'");
          }
          return new Topics(names, null, null);
        case SUBSCRIBE_PATTERN:
          if (value.isBlank()) {
            throw new IllegalArgumentException("Pattern to subscribe is empty in option 'subscribePattern'");
          }
          return new Topics(null, value.trim(), null);
        default:
          return new Topics(null, null, OffsetJson.readPartitions(value, ASSIGN));
      }
    }

    @Override
    public String toString() {
      return names != null ? "Subscribe" + names : pattern != null ? "Pattern[" + pattern + "]" : "Assign" + assigned;
    }
  }

  Map<TopicPartition, Long> everywhere(Set<TopicPartition> partitions, long value) {
    Map<TopicPartition, Long> same = new TreeMap<>();
    partitions.forEach(id -> same.put(id, value));
    return same;
  }
}
