package io.penstock.client;

import io.penstock.record.BatchSource;
import io.penstock.shm.MemoryUnavailable;
import io.penstock.shm.Node;
import io.penstock.shm.PartitionMemory;
import io.penstock.shm.PushSource;
import io.penstock.shm.SharedMemory;
import java.io.IOException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * One partition's batches for one task: by push where its leader's memory is here, by pull elsewhere. It
 * changes over between two batches, both ways, and goes on from the very offset it is asked for, so that a
 * change neither loses nor repeats a record.
 */
public final class Feed implements BatchSource {
  private static final Logger LOG = LoggerFactory.getLogger(Feed.class);
  private static final long RETRY_NANOS = 50_000_000L;
  private static final long PUSH_PATIENCE_NANOS = 10_000_000_000L;
  /** How long memory that can't be read here is let alone; a leader that was out of touch comes back to it. */
  private static final long FORGET_NANOS = 10_000_000_000L;

  private final Cluster cluster;
  private final TopicPartition id;
  private final Mode mode;
  private final String label;
  private final boolean blocking;
  private final long limit;

  private Location location;
  /** Whether it was this feed that found the location, and not the driver some time ago. */
  private boolean located;
  private PartitionMemory memory;
  private Node.Pulse pulse;
  private boolean busy;
  private PushSource push;
  private PullSource pull;
  private BatchSource active;
  private long retryAt = System.nanoTime();
  private long lostAt;
  private long forgottenAt;

  private long pushRecords;
  private long pushBytes;
  private long pullRecords;
  private long pullBytes;
  private int changes;

  /**
   * @param location where the driver found the partition; a feed looks for itself when that no longer holds
   * @param blocking whether a pull waits for its response (a range) or says «nothing yet» (real time)
   * @param limit the offset that the reader will stop at
   */
  public Feed(Cluster cluster, Location location, Mode mode, String label, boolean blocking, long limit) {
    this.cluster = cluster;
    this.id = location.partition();
    this.location = location;
    this.mode = mode;
    this.label = label;
    this.blocking = blocking;
    this.limit = limit;
  }

  public TopicPartition partition() {
    return id;
  }

  @Override
  public boolean open(long offset) throws IOException {
    if (active == null || active == pull) {
      tryPush(offset);
    }
    if (active == push && push != null) {
      try {
        if (push.open(offset)) {
          busy = true;
          return true;
        }
        watchHeart();
        return false;
      } catch (MemoryUnavailable e) {
        leaveMemory(e.getMessage(), offset);
      }
    }
    return pull(offset);
  }

  /** Takes up push if the memory is here and holds the offset. */
  private void tryPush(long offset) throws IOException {
    if (mode == Mode.PULL || location == null) {
      return;
    }
    if (location.memory() == null) {
      if (forgottenAt != 0 && System.nanoTime() - forgottenAt > FORGET_NANOS) {
        forgottenAt = 0;
        location = null;
      }
      return;
    }
    if (cluster.isElsewhere(location.memory().host())) {
      forgetMemory();
      return;
    }
    try {
      if (memory == null) {
        memory = location.map();
      }
      if (!memory.live()) {
        throw new MemoryUnavailable(memory + " is not led there now");
      }
      if (!memory.holds(offset)) {
        if (mode == Mode.PUSH) {
          throw evicted(offset);
        }
        return;
      }
      if (push == null) {
        push = new PushSource(memory, label, offset);
        pulse = memory.node.pulse();
      }
    } catch (MemoryUnavailable e) {
      LOG.debug("{}: no push: {}", id, e.getMessage());
      dropMemory();
      if (located) {
        cluster.noteElsewhere(location.memory().host());
        forgetMemory();
      } else {
        // The driver's word may be old, of a broker process that has gone: look for oneself.
        location = null;
      }
      return;
    }
    if (active == pull && pull != null) {
      changes++;
      LOG.info("{}: from pull to push at offset {}", id, offset);
      pull.close();
      pull = null;
    }
    pulse.restart();
    lostAt = 0;
    active = push;
  }

  private void forgetMemory() {
    forgottenAt = System.nanoTime();
    location = new Location(location.partition(), location.brokerId(), location.endpoint(), null);
  }

  private void watchHeart() throws MemoryUnavailable {
    if (busy) {
      busy = false;
      pulse.restart();
    }
    if (!pulse.beats()) {
      throw new MemoryUnavailable("broker " + location.brokerId() + " shows no heartbeat");
    }
  }

  private void leaveMemory(String why, long offset) throws IOException {
    boolean evicted = memory.live() && pulse.beats();
    if (mode == Mode.PUSH && evicted) {
      throw evicted(offset);
    }
    changes++;
    LOG.info("{}: from push to pull at offset {}: {}", id, offset, why);
    active = null;
    if (evicted) {
      push.rest();
    } else {
      dropMemory();
      location = null;
    }
  }

  private void dropMemory() {
    if (push != null) {
      push.close();
      push = null;
    }
    if (memory != null && !memory.live()) {
      SharedMemory.ofThisProcess().forget(memory);
    }
    memory = null;
  }

  private boolean pull(long offset) throws IOException {
    if (System.nanoTime() - retryAt < 0) {
      return false;
    }
    try {
      if (location == null) {
        location = cluster.relocate(id);
        located = true;
        if (location.memory() != null) {
          return open(offset);
        }
      }
      if (mode == Mode.PUSH) {
        waitForMemory();
        return false;
      }
      if (pull == null) {
        pull = new PullSource(cluster, location, blocking, limit);
      }
      active = pull;
      return pull.open(offset);
    } catch (PushImpossible e) {
      throw e;
    } catch (IOException e) {
      if (e instanceof KafkaError error && !error.passes()) {
        throw e;
      }
      if (Thread.currentThread().isInterrupted()) {
        throw e;
      }
      LOG.info("{}: {}; looking for its leader", id, e.getMessage());
      if (pull != null) {
        pull.abandon();
        pull = null;
      }
      active = null;
      location = null;
      retryAt = System.nanoTime() + RETRY_NANOS;
      return false;
    }
  }

  private void waitForMemory() throws IOException {
    long now = System.nanoTime();
    if (lostAt == 0) {
      lostAt = now;
    }
    if (now - lostAt > PUSH_PATIENCE_NANOS) {
      throw new PushImpossible("mode=push, but the memory of " + id + " is not on this machine (its leader is "
          + location.endpoint() + "). Set mode to auto, or run the task on the leader's node.");
    }
    location = null;
    retryAt = now + RETRY_NANOS;
  }

  private PushImpossible evicted(long offset) {
    return new PushImpossible("mode=push, but offset " + offset + " of " + id
        + " is no longer in memory. Set mode to auto: it pulls what memory no longer holds.");
  }

  /** Not a passing error, whatever the connection does. */
  private static final class PushImpossible extends IOException {
    private static final long serialVersionUID = 1L;

    PushImpossible(String message) {
      super(message);
    }
  }

  @Override
  public boolean hasBatch() throws IOException {
    return active.hasBatch();
  }

  @Override
  public long address() {
    return active.address();
  }

  @Override
  public int size() {
    return active.size();
  }

  @Override
  public void pass() {
    if (active == push) {
      pushBytes += active.size();
    } else {
      pullBytes += active.size();
    }
    active.pass();
  }

  /** Counts records that the reader took: of the first and last batch of a range perhaps not all. */
  public void took(int records) {
    if (active == push) {
      pushRecords += records;
    } else {
      pullRecords += records;
    }
  }

  /** What was handed out can't be relied on, and none of it was used: the next open looks again. */
  public void lookAgain() {
    if (active == push && push != null) {
      push.rest();
      active = null;
    }
  }

  @Override
  public boolean intact() {
    return active == null || active.intact();
  }

  @Override
  public long barrenUntil() {
    return active == null ? -1 : active.barrenUntil();
  }

  /** Publishes progress where there is a cursor; called once for every columnar batch, not for every record. */
  public void finished(long offset) {
    if (push != null) {
      push.report(active != push, offset, pushRecords, pushBytes, pullRecords, pullBytes);
    }
  }

  public long pushRecords() {
    return pushRecords;
  }

  public long pushBytes() {
    return pushBytes;
  }

  public long pullRecords() {
    return pullRecords;
  }

  public long pullBytes() {
    return pullBytes;
  }

  /** How often it went from push to pull or back. */
  public int changes() {
    return changes;
  }

  @Override
  public void close() {
    if (push != null) {
      push.close();
    }
    if (pull != null) {
      pull.close();
    }
    active = null;
  }
}
