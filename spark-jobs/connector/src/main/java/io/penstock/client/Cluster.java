package io.penstock.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The brokers behind some bootstrap servers, as one process talks to them: who leads what, offsets, places
 * in shared memory, and a few connections that its tasks share.
 */
public final class Cluster {
  public static final long EARLIEST = -2;
  public static final long LATEST = -1;

  private static final Logger LOG = LoggerFactory.getLogger(Cluster.class);
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Map<Settings, Cluster> CLUSTERS = new ConcurrentHashMap<>();
  private static final String SESSION = UUID.randomUUID().toString();
  private static final long BACK_OFF_MS = 50;
  private static final long IDLE_NANOS = 30_000_000_000L;
  /** A broker that restarts has a new incarnation: a driver that plans with the old one would rule out push. */
  private static final long LOCATION_AGE_NANOS = 5_000_000_000L;
  private static final long ELSEWHERE_NANOS = 10_000_000_000L;

  /** A partition as Metadata tells of it; leader -1 when it has none. */
  public record Partition(TopicPartition id, int leader, boolean internal) {}

  /** The brokers and the partitions of the topics that were asked for. */
  public record Metadata(Map<Integer, Endpoint> brokers, Map<TopicPartition, Partition> partitions) {}

  private interface Reply<T> {
    T read(ByteBuffer body) throws IOException;
  }

  private final Settings settings;
  private final List<Endpoint> bootstrap;
  private final Map<Endpoint, Deque<Connection>> idle = new HashMap<>();
  private volatile Map<Integer, Endpoint> brokers = Map.of();
  /** As last heard; forgotten whenever a request fails. */
  private volatile Map<TopicPartition, Partition> leaders = Map.of();
  private final Map<TopicPartition, Location> locations = new ConcurrentHashMap<>();
  private final Map<Location.Host, Long> elsewhere = new ConcurrentHashMap<>();
  private volatile long locatedAt;

  private Cluster(Settings settings) {
    this.settings = settings;
    this.bootstrap = Endpoint.parse(settings.servers());
  }

  public static Cluster of(Settings settings) {
    return CLUSTERS.computeIfAbsent(settings, Cluster::new);
  }

  public Settings settings() {
    return settings;
  }

  // Connections

  Connection take(Endpoint endpoint) throws IOException {
    synchronized (idle) {
      Deque<Connection> free = idle.get(endpoint);
      while (free != null && !free.isEmpty()) {
        Connection connection = free.pollLast();
        if (System.nanoTime() - connection.idleSince < IDLE_NANOS) {
          return connection;
        }
        connection.close();
      }
    }
    return new Connection(endpoint, settings);
  }

  void giveBack(Connection connection) {
    connection.idleSince = System.nanoTime();
    synchronized (idle) {
      idle.computeIfAbsent(connection.endpoint, any -> new ArrayDeque<>()).addLast(connection);
    }
  }

  private <T> T call(Endpoint endpoint, Api api, Consumer<Message> body, Reply<T> reply) throws IOException {
    Connection connection = take(endpoint);
    boolean well = false;
    try {
      T answer = reply.read(connection.call(api, body, settings.requestTimeoutMs()));
      well = true;
      return answer;
    } catch (KafkaError e) {
      well = true;
      throw e;
    } finally {
      if (well) {
        giveBack(connection);
      } else {
        connection.close();
      }
    }
  }

  /** Asks any broker that answers. */
  <T> T callAny(Api api, Consumer<Message> body, java.util.function.Function<ByteBuffer, T> reply)
      throws IOException {
    List<Endpoint> candidates = new ArrayList<>(brokers.values());
    bootstrap.stream().filter(server -> !candidates.contains(server)).forEach(candidates::add);
    IOException last = null;
    for (Endpoint endpoint : candidates) {
      try {
        return call(endpoint, api, body, reply::apply);
      } catch (ClosedByInterruptException e) {
        throw e;
      } catch (IOException e) {
        last = e;
      }
    }
    throw new IOException("no broker among " + candidates + " answers: " + last.getMessage(), last);
  }

  /** Tries until it succeeds or patience is at an end; for questions that a change of leader may disturb. */
  <T> T patiently(String what, Attempt<T> attempt) throws IOException {
    long deadline = System.nanoTime() + settings.patienceMs() * 1_000_000;
    long pause = BACK_OFF_MS;
    while (true) {
      try {
        return attempt.run();
      } catch (ClosedByInterruptException e) {
        // As it is: Spark tells a query that was stopped from one that failed by it.
        throw e;
      } catch (IOException e) {
        boolean hopeless = e instanceof KafkaError error && !error.passes();
        if (hopeless || System.nanoTime() > deadline) {
          throw new IOException(what + " failed: " + e.getMessage(), e);
        }
        forgetLeaders();
        LOG.debug("{}: {}; trying again", what, e.getMessage());
        pause(pause);
        pause = Math.min(1000, pause * 2);
      }
    }
  }

  interface Attempt<T> {
    T run() throws IOException;
  }

  static void pause(long ms) throws IOException {
    try {
      Thread.sleep(ms);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new ClosedByInterruptException();
    }
  }

  // Metadata

  /** What the cluster says of these topics, or of all when null. Topics that don't exist are left out. */
  public Metadata metadata(Collection<String> topics) throws IOException {
    return patiently("reading the metadata of " + (topics == null ? "all topics" : topics), () -> ask(topics, false));
  }

  /** How many partitions a topic has; the broker makes it now if it is missing, and if its settings allow that. */
  int partitionsToWrite(String topic) throws IOException {
    return patiently("writing to " + topic, () -> {
      int count = ask(List.of(topic), true).partitions().size();
      if (count == 0) {
        throw new KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, "topic " + topic + " does not exist");
      }
      return count;
    });
  }

  private Metadata ask(Collection<String> topics, boolean create) throws IOException {
    Metadata metadata = callAny(Api.METADATA, body -> {
      body.int32(topics == null ? -1 : topics.size());
      if (topics != null) {
        topics.forEach(body::string);
      }
      body.int8(create ? 1 : 0);
    }, Cluster::readMetadata);
    if (!metadata.brokers().isEmpty()) {
      brokers = metadata.brokers();
    }
    Map<TopicPartition, Partition> known = new HashMap<>(leaders);
    known.putAll(metadata.partitions());
    leaders = known;
    return metadata;
  }

  private static Metadata readMetadata(ByteBuffer in) {
    in.getInt();
    Map<Integer, Endpoint> brokers = new LinkedHashMap<>();
    for (int left = in.getInt(); left > 0; left--) {
      int id = in.getInt();
      brokers.put(id, new Endpoint(Message.readString(in), in.getInt()));
      Message.readString(in);
    }
    Message.readString(in);
    in.getInt();
    Map<TopicPartition, Partition> partitions = new TreeMap<>();
    for (int left = in.getInt(); left > 0; left--) {
      in.getShort();
      String topic = Message.readString(in);
      boolean internal = in.get() != 0;
      for (int count = in.getInt(); count > 0; count--) {
        in.getShort();
        TopicPartition id = new TopicPartition(topic, in.getInt());
        partitions.put(id, new Partition(id, in.getInt(), internal));
        in.getInt();
        Message.skipInts(in);
        Message.skipInts(in);
        Message.skipInts(in);
      }
    }
    return new Metadata(brokers, partitions);
  }

  // Offsets

  /** The first offset at or after each timestamp, -1 where there is none; EARLIEST and LATEST serve too. */
  public Map<TopicPartition, Long> offsets(Map<TopicPartition, Long> timestamps) throws IOException {
    if (timestamps.isEmpty()) {
      return Map.of();
    }
    return patiently("reading offsets", () -> {
      Map<TopicPartition, Long> offsets = new TreeMap<>();
      for (Map.Entry<Endpoint, List<TopicPartition>> leader : byLeader(timestamps.keySet()).entrySet()) {
        offsets.putAll(offsets(leader.getKey(), leader.getValue(), timestamps));
      }
      return offsets;
    });
  }

  private Map<TopicPartition, Long> offsets(
      Endpoint leader, List<TopicPartition> partitions, Map<TopicPartition, Long> timestamps)
      throws IOException {
    return call(leader, Api.LIST_OFFSETS, body -> {
      body.int32(-1).int8(0);
      byTopic(body, partitions, id -> body.int32(id.partition()).int64(timestamps.get(id)));
    }, in -> {
      Map<TopicPartition, Long> offsets = new HashMap<>();
      in.getInt();
      for (int topics = in.getInt(); topics > 0; topics--) {
        String topic = Message.readString(in);
        for (int left = in.getInt(); left > 0; left--) {
          TopicPartition id = new TopicPartition(topic, in.getInt());
          short error = in.getShort();
          in.getLong();
          long offset = in.getLong();
          if (error != KafkaError.NONE) {
            throw new KafkaError(error, "the offsets of " + id);
          }
          offsets.put(id, offset);
        }
      }
      return offsets;
    });
  }

  /** Writes partitions grouped by topic, as Kafka's requests want them. */
  static void byTopic(Message body, Collection<TopicPartition> partitions, Consumer<TopicPartition> each) {
    Map<String, List<TopicPartition>> topics = new TreeMap<>();
    partitions.forEach(id -> topics.computeIfAbsent(id.topic(), any -> new ArrayList<>()).add(id));
    body.int32(topics.size());
    topics.forEach((topic, ids) -> {
      body.string(topic).int32(ids.size());
      ids.forEach(each);
    });
  }

  void forgetLeaders() {
    leaders = Map.of();
  }

  Map<Endpoint, List<TopicPartition>> byLeader(Collection<TopicPartition> wanted) throws IOException {
    if (!leaders.keySet().containsAll(wanted)) {
      List<String> topics = wanted.stream().map(TopicPartition::topic).distinct().toList();
      ask(topics, false);
    }
    Map<Endpoint, List<TopicPartition>> groups = new LinkedHashMap<>();
    for (TopicPartition id : wanted) {
      groups.computeIfAbsent(leaderOf(leaders.get(id), id), any -> new ArrayList<>()).add(id);
    }
    return groups;
  }

  private Endpoint leaderOf(Partition partition, TopicPartition id) throws KafkaError {
    if (partition == null) {
      throw new KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, id.toString());
    }
    Endpoint endpoint = brokers.get(partition.leader());
    if (endpoint == null) {
      throw new KafkaError(KafkaError.LEADER_NOT_AVAILABLE, id.toString());
    }
    return endpoint;
  }

  // Places

  /** Where these partitions are led, as of a few seconds ago at most. */
  public Map<TopicPartition, Location> locate(Collection<TopicPartition> wanted) throws IOException {
    long now = System.nanoTime();
    if (!locations.keySet().containsAll(wanted) || now - locatedAt > LOCATION_AGE_NANOS) {
      locations.putAll(patiently("finding the leaders of " + wanted, () -> look(wanted)));
      locatedAt = now;
    }
    Map<TopicPartition, Location> found = new TreeMap<>();
    wanted.forEach(id -> found.put(id, locations.get(id)));
    return found;
  }

  /** What the leaders say of these logs now; those that don't speak of it, or aren't asked, are left out. */
  public Map<TopicPartition, Extent> extents(Collection<TopicPartition> wanted) throws IOException {
    if (!settings.wantsMemory() || wanted.isEmpty()) {
      return Map.of();
    }
    Map<TopicPartition, Location> found = patiently("finding the leaders of " + wanted, () -> look(wanted));
    locations.putAll(found);
    Map<TopicPartition, Extent> extents = new TreeMap<>();
    found.forEach((id, location) -> {
      if (location.memory() != null) {
        extents.put(id, location.memory().extent());
      }
    });
    return extents;
  }

  /** Looks again, once, without patience: the reader that asks has a loop of its own. */
  public Location relocate(TopicPartition wanted) throws IOException {
    Location found = look(List.of(wanted)).get(wanted);
    locations.put(wanted, found);
    return found;
  }

  /** Whether this broker process's memory was looked for a moment ago, and is not on this machine. */
  boolean isElsewhere(Location.Host host) {
    Long since = elsewhere.get(host);
    return since != null && System.nanoTime() - since < ELSEWHERE_NANOS;
  }

  void noteElsewhere(Location.Host host) {
    elsewhere.put(host, System.nanoTime());
  }

  /** One Metadata request, and one Subscribe to each leader that offers it. */
  private Map<TopicPartition, Location> look(Collection<TopicPartition> wanted) throws IOException {
    Metadata metadata = ask(wanted.stream().map(TopicPartition::topic).distinct().toList(), false);
    Map<Integer, List<TopicPartition>> byBroker = new TreeMap<>();
    for (TopicPartition id : wanted) {
      Partition partition = metadata.partitions().get(id);
      leaderOf(partition, id);
      byBroker.computeIfAbsent(partition.leader(), any -> new ArrayList<>()).add(id);
    }
    Map<TopicPartition, Location> found = new HashMap<>();
    for (Map.Entry<Integer, List<TopicPartition>> broker : byBroker.entrySet()) {
      int id = broker.getKey();
      Endpoint endpoint = metadata.brokers().get(id);
      Map<TopicPartition, Location.Memory> memory =
          settings.wantsMemory() ? subscribe(id, endpoint, broker.getValue()) : Map.of();
      broker.getValue().forEach(
          partition -> found.put(partition, new Location(partition, id, endpoint, memory.get(partition))));
    }
    return found;
  }

  /** A broker that doesn't say where its log is dense promises nothing. */
  private static Extent extent(JsonNode partition) {
    long highWatermark = partition.path("highWatermark").asLong();
    long denseFrom = partition.path("denseFrom").asLong(highWatermark);
    return new Extent(denseFrom, highWatermark, partition.path("bytes").asLong(-1));
  }

  private Map<TopicPartition, Location.Memory> subscribe(
      int brokerId, Endpoint endpoint, List<TopicPartition> partitions) throws IOException {
    Connection connection = take(endpoint);
    boolean offered = connection.offers(Api.SUBSCRIBE);
    giveBack(connection);
    if (!offered) {
      return Map.of();
    }
    ObjectNode request = JSON.createObjectNode().put("session", SESSION);
    ArrayNode topics = request.putArray("topics");
    partitions.stream().map(TopicPartition::topic).distinct().forEach(topic -> {
      ArrayNode numbers = topics.addObject().put("topic", topic).putArray("partitions");
      partitions.stream().filter(id -> id.topic().equals(topic)).forEach(id -> numbers.add(id.partition()));
    });
    JsonNode answer = call(endpoint, Api.SUBSCRIBE, body -> body.text(request.toString()),
        in -> JSON.readTree(Message.readText(in, in.getInt())));
    Map<TopicPartition, Location.Memory> memory = new HashMap<>();
    if (answer.hasNonNull("error")) {
      LOG.warn("Broker {} refuses push: {}", brokerId, answer.get("error").asText());
      return memory;
    }
    String announced = answer.path("shmDir").asText();
    String directory = settings.shmRoot() == null ? announced : settings.shmRoot() + "/" + brokerId;
    for (JsonNode each : answer.path("partitions")) {
      if (!each.hasNonNull("error")) {
        TopicPartition id = new TopicPartition(each.path("topic").asText(), each.path("partition").asInt());
        String topicId = each.path("topicId").asText();
        memory.put(id, new Location.Memory(
            answer.path("host").asText(),
            directory,
            answer.path("incarnation").asLong(),
            topicId,
            directory + "/" + topicId + "/" + id.partition(),
            each.path("leaderEpoch").asInt(),
            extent(each)));
      }
    }
    return memory;
  }
}
