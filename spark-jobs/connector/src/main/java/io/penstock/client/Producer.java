package io.penstock.client;

import io.penstock.record.BatchWriter;
import io.penstock.record.BatchWriter.Header;
import java.io.Closeable;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * An idempotent producer (acks=all). A thread of its own sends whatever has gathered while the last request
 * was on its way: one record leaves at once, a flood leaves in large batches, and no linger is needed for
 * that (with one, records wait for company, which spares the broker requests). One batch per partition is under way at a time, so that order and sequence numbers hold.
 */
public final class Producer implements Closeable {
  private static final Logger LOG = LoggerFactory.getLogger(Producer.class);
  private static final long METADATA_AGE_NANOS = 60_000_000_000L;
  private static final long BACK_OFF_MS = 20;
  private static final Header[] NO_HEADERS = {};

  /** One partition's batches, in order; the one being filled is the last. */
  private static final class Lane {
    final TopicPartition id;
    final Deque<BatchWriter> batches = new ArrayDeque<>();
    int nextSequence;
    Sending sending;

    Lane(TopicPartition id) {
      this.id = id;
    }
  }

  /** A batch on its way; sent again unchanged until the broker has it, which is what makes it idempotent. */
  private record Sending(Lane lane, ByteBuffer bytes, int count, long since) {}

  private record TopicView(int partitions, long since) {}

  private final Cluster cluster;
  private final ProducerSettings settings;
  private final Map<TopicPartition, Lane> lanes = new LinkedHashMap<>();
  private final Map<String, TopicView> topics = new HashMap<>();
  private final Map<String, Integer> sticky = new HashMap<>();
  private final Thread sender = new Thread(this::run, "penstock-producer");
  private long producerId;
  private short producerEpoch;
  private long buffered;
  private int unfinished;
  private int flushing;
  private boolean asleep;
  private boolean closed;
  private IOException failure;

  public Producer(ProducerSettings settings) throws IOException {
    this.settings = settings;
    this.cluster = Cluster.of(settings.cluster());
    cluster.patiently("getting a producer id", () -> {
      short error = cluster.callAny(Api.INIT_PRODUCER_ID, body -> body.string(null).int32(60_000), this::identify);
      if (error != KafkaError.NONE) {
        throw new KafkaError(error, "InitProducerId");
      }
      return null;
    });
    sender.setDaemon(true);
    sender.start();
  }

  private short identify(ByteBuffer in) {
    in.getInt();
    short error = in.getShort();
    producerId = in.getLong();
    producerEpoch = in.getShort();
    return error;
  }

  /** Adds a record; waits while the buffer is full. The partition may be null: key and chance decide. */
  public void send(String topic, Integer partition, byte[] key, byte[] value, Header[] headers) throws IOException {
    TopicPartition id = new TopicPartition(topic, partition != null ? partition : choose(topic, key));
    synchronized (this) {
      while (buffered > settings.bufferBytes() && failure == null) {
        await();
      }
      throwFailure();
      Lane lane = lanes.computeIfAbsent(id, Lane::new);
      BatchWriter batch = lane.batches.peekLast();
      if (batch == null || batch.size() >= settings.batchBytes()) {
        batch = new BatchWriter();
        lane.batches.addLast(batch);
        unfinished++;
        sticky.remove(topic);
      }
      int before = batch.size();
      batch.append(System.currentTimeMillis(), key, value, headers == null ? NO_HEADERS : headers);
      buffered += batch.size() - before;
      if (asleep || (settings.lingerMs() > 0 && buffered >= settings.batchBytes())) {
        notifyAll();
      }
    }
  }

  private int choose(String topic, byte[] key) throws IOException {
    TopicView view = topics.get(topic);
    if (view == null || System.nanoTime() - view.since > METADATA_AGE_NANOS) {
      view = new TopicView(cluster.partitionsToWrite(topic), System.nanoTime());
      topics.put(topic, view);
    }
    if (key != null) {
      return KeyHash.partition(key, view.partitions);
    }
    int partitions = view.partitions;
    synchronized (this) {
      // One partition until its batch is begun anew: many records in few batches.
      return sticky.computeIfAbsent(topic, any -> ThreadLocalRandom.current().nextInt(partitions));
    }
  }

  /** Returns when the broker has everything that was sent. */
  public synchronized void flush() throws IOException {
    flushing++;
    notifyAll();
    try {
      while (unfinished > 0 && failure == null) {
        await();
      }
    } finally {
      flushing--;
    }
    throwFailure();
  }

  private void await() throws InterruptedIOException {
    try {
      wait();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted while writing");
    }
  }

  private void throwFailure() throws IOException {
    if (failure != null) {
      throw new IOException("writing failed: " + failure.getMessage(), failure);
    }
  }

  @Override
  public void close() {
    synchronized (this) {
      closed = true;
      notifyAll();
    }
  }

  // The sender's thread

  private void run() {
    try {
      for (List<Sending> round = gather(); !round.isEmpty(); round = gather()) {
        if (!deliver(round)) {
          Thread.sleep(BACK_OFF_MS);
        }
      }
    } catch (IOException | RuntimeException e) {
      fail(e instanceof IOException io ? io : new IOException(e));
    } catch (InterruptedException e) {
      fail(new InterruptedIOException("the producer was interrupted"));
    }
  }

  private synchronized void fail(IOException e) {
    failure = e;
    notifyAll();
  }

  /** One batch of every partition that has any; waits for the first. Empty when the producer is closed. */
  private synchronized List<Sending> gather() throws IOException, InterruptedException {
    List<Sending> round = new ArrayList<>();
    while (!closed) {
      linger();
      for (Lane lane : lanes.values()) {
        if (lane.sending == null && !lane.batches.isEmpty()) {
          BatchWriter batch = lane.batches.pollFirst();
          ByteBuffer bytes = batch.finish(settings.codec(), producerId, producerEpoch, lane.nextSequence);
          lane.sending = new Sending(lane, bytes, batch.count(), System.nanoTime());
          lane.nextSequence = (lane.nextSequence + batch.count()) & Integer.MAX_VALUE;
          buffered -= batch.size();
        }
        if (lane.sending != null) {
          round.add(lane.sending);
        }
      }
      if (!round.isEmpty()) {
        notifyAll();
        return round;
      }
      asleep = true;
      wait();
      asleep = false;
    }
    return round;
  }

  /** Lets what there is wait for company, unless somebody waits for it or it is enough for a batch. */
  private void linger() throws InterruptedException {
    long until = System.nanoTime() + settings.lingerMs() * 1_000_000;
    while (!closed && unfinished > 0 && flushing == 0 && buffered < settings.batchBytes()) {
      long left = until - System.nanoTime();
      if (left <= 0) {
        return;
      }
      wait(left / 1_000_000, (int) (left % 1_000_000));
    }
  }

  /** Sends a round, one request for each leader. False when something is left to be sent again. */
  private boolean deliver(List<Sending> round) throws IOException {
    long now = System.nanoTime();
    for (Sending sending : round) {
      if (now - sending.since > settings.deliveryMs() * 1_000_000) {
        throw new IOException(sending.lane.id + ": not acknowledged within " + settings.deliveryMs() + " ms");
      }
    }
    boolean all = true;
    Map<Endpoint, List<Sending>> byLeader;
    try {
      byLeader = byLeader(round);
    } catch (IOException e) {
      LOG.info("{}; trying again", e.getMessage());
      return false;
    }
    Map<Endpoint, Connection> asked = new LinkedHashMap<>();
    for (Map.Entry<Endpoint, List<Sending>> leader : byLeader.entrySet()) {
      try {
        Connection connection = cluster.take(leader.getKey());
        asked.put(leader.getKey(), connection);
        request(connection, leader.getValue());
      } catch (IOException e) {
        all = false;
        retryLater(asked.remove(leader.getKey()), e);
      }
    }
    for (Map.Entry<Endpoint, Connection> each : asked.entrySet()) {
      try {
        ByteBuffer answer = each.getValue().receive(cluster.settings().requestTimeoutMs());
        all &= settle(answer, byLeader.get(each.getKey()));
        cluster.giveBack(each.getValue());
      } catch (KafkaError e) {
        each.getValue().close();
        throw e;
      } catch (IOException e) {
        all = false;
        retryLater(each.getValue(), e);
      }
    }
    return all;
  }

  private void retryLater(Connection connection, IOException e) {
    LOG.info("{}; sending again", e.getMessage());
    cluster.forgetLeaders();
    if (connection != null) {
      connection.close();
    }
  }

  private Map<Endpoint, List<Sending>> byLeader(List<Sending> round) throws IOException {
    Map<TopicPartition, Sending> byId = new LinkedHashMap<>();
    round.forEach(sending -> byId.put(sending.lane.id, sending));
    Map<Endpoint, List<Sending>> groups = new LinkedHashMap<>();
    cluster.byLeader(byId.keySet()).forEach(
        (leader, ids) -> groups.put(leader, ids.stream().map(byId::get).toList()));
    return groups;
  }

  private void request(Connection connection, List<Sending> batches) throws IOException {
    Map<TopicPartition, Sending> byId = new HashMap<>();
    batches.forEach(sending -> byId.put(sending.lane.id, sending));
    long timeout = cluster.settings().requestTimeoutMs();
    connection.send(Api.PRODUCE, body -> {
      body.string(null).int16(-1).int32((int) timeout);
      Cluster.byTopic(body, byId.keySet(), id -> {
        ByteBuffer bytes = byId.get(id).bytes;
        body.int32(id.partition()).int32(bytes.limit()).bytes(bytes.array(), bytes.limit());
      });
    }, timeout);
  }

  private boolean settle(ByteBuffer in, List<Sending> batches) throws IOException {
    Map<TopicPartition, Sending> byId = new HashMap<>();
    batches.forEach(sending -> byId.put(sending.lane.id, sending));
    for (int left = in.getInt(); left > 0; left--) {
      String topic = Message.readString(in);
      for (int partitions = in.getInt(); partitions > 0; partitions--) {
        TopicPartition id = new TopicPartition(topic, in.getInt());
        short error = in.getShort();
        in.getLong();
        in.getLong();
        in.getLong();
        if (error == KafkaError.NONE || error == KafkaError.DUPLICATE_SEQUENCE_NUMBER) {
          delivered(byId.remove(id));
        } else if (KafkaError.passes(error)) {
          LOG.info("{}: error {}; sending again", id, error);
          cluster.forgetLeaders();
        } else {
          throw new KafkaError(error, "writing to " + id);
        }
      }
    }
    return byId.isEmpty();
  }

  private synchronized void delivered(Sending sending) {
    sending.lane.sending = null;
    unfinished--;
    notifyAll();
  }
}
