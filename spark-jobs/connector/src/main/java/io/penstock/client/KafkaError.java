package io.penstock.client;

import java.io.IOException;
import java.util.Set;

/** A broker's error code in a response. */
public final class KafkaError extends IOException {
  private static final long serialVersionUID = 1L;

  public static final short NONE = 0;
  public static final short OFFSET_OUT_OF_RANGE = 1;
  public static final short UNKNOWN_TOPIC_OR_PARTITION = 3;
  public static final short LEADER_NOT_AVAILABLE = 5;
  public static final short NOT_LEADER_OR_FOLLOWER = 6;
  public static final short REQUEST_TIMED_OUT = 7;
  public static final short REPLICA_NOT_AVAILABLE = 9;
  public static final short NETWORK_EXCEPTION = 13;
  public static final short COORDINATOR_LOAD_IN_PROGRESS = 14;
  public static final short COORDINATOR_NOT_AVAILABLE = 15;
  public static final short NOT_ENOUGH_REPLICAS = 19;
  public static final short NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20;
  public static final short DUPLICATE_SEQUENCE_NUMBER = 46;
  public static final short KAFKA_STORAGE_ERROR = 56;
  public static final short FENCED_LEADER_EPOCH = 74;
  public static final short UNKNOWN_LEADER_EPOCH = 75;
  public static final short OFFSET_NOT_AVAILABLE = 78;
  public static final short THROTTLING_QUOTA_EXCEEDED = 89;
  public static final short UNKNOWN_TOPIC_ID = 100;

  private static final Set<Short> PASSING = Set.of(
      UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT,
      REPLICA_NOT_AVAILABLE, NETWORK_EXCEPTION, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
      NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH,
      UNKNOWN_LEADER_EPOCH, OFFSET_NOT_AVAILABLE, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_TOPIC_ID);

  public final short code;

  public KafkaError(short code, String what) {
    super(what + ": the broker answered error " + code);
    this.code = code;
  }

  /** Whether the same request may well succeed a little later, perhaps at another broker. */
  public boolean passes() {
    return passes(code);
  }

  public static boolean passes(short code) {
    return PASSING.contains(code);
  }
}
