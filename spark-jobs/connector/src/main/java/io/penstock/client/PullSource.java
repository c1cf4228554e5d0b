package io.penstock.client;

import io.penstock.record.BatchSource;
import io.penstock.record.RecordBatch;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.arrow.memory.util.MemoryUtil;

/**
 * Reads a partition by Kafka Fetch. The next request is on its way while the last response is being read,
 * so that the broker and Spark work at the same time.
 */
final class PullSource implements BatchSource {
  private static final int WAIT_MS = 500;
  private static final long NOTHING_ASKED = -1;
  /** A broker may answer with nothing for its own reasons (a quota): so many times in a row it means it. */
  private static final int CONVINCED = 3;

  private final Cluster cluster;
  private final Location location;
  private final boolean blocking;
  private final long limit;
  private Connection connection;
  private long asked = NOTHING_ASKED;
  private long at;
  private long end;
  private int size;
  private long committed = -1;
  private int emptyAnswers;

  /** A source that isn't blocking says «nothing yet» while a response is on its way. */
  PullSource(Cluster cluster, Location location, boolean blocking, long limit) {
    this.cluster = cluster;
    this.location = location;
    this.blocking = blocking;
    this.limit = limit;
  }

  @Override
  public boolean open(long offset) throws IOException {
    long timeout = cluster.settings().requestTimeoutMs();
    if (connection != null && asked != NOTHING_ASKED && asked != offset) {
      close();
    }
    if (connection == null) {
      connection = cluster.take(location.endpoint());
    }
    if (asked == NOTHING_ASKED) {
      request(offset, timeout);
    }
    if (!blocking && !connection.readable()) {
      return false;
    }
    ByteBuffer response = connection.receive(timeout);
    asked = NOTHING_ASKED;
    size = 0;
    read(response);
    long next = offset;
    for (long batch = at; ; ) {
      int length = RecordBatch.size(batch, end - batch);
      if (length == 0) {
        break;
      }
      next = RecordBatch.nextOffset(batch);
      batch += length;
    }
    while (hasBatch() && RecordBatch.nextOffset(at) <= offset) {
      pass();
    }
    if (next > offset && next < limit) {
      request(next, timeout);
    }
    emptyAnswers = hasBatch() ? 0 : emptyAnswers + 1;
    return hasBatch();
  }

  private void request(long offset, long timeout) throws IOException {
    int most = cluster.settings().fetchBytes();
    connection.send(Api.FETCH, body -> body
        .int32(-1).int32(WAIT_MS).int32(1).int32(most).int8(0)
        .int32(0).int32(-1)
        .int32(1).string(location.partition().topic())
        .int32(1).int32(location.partition().partition()).int32(-1).int64(offset).int64(-1).int32(most)
        .int32(0), timeout);
    asked = offset;
  }

  private void read(ByteBuffer in) throws IOException {
    in.getInt();
    succeeded(in.getShort());
    in.getInt();
    at = 0;
    end = 0;
    for (int topics = in.getInt(); topics > 0; topics--) {
      Message.readString(in);
      for (int partitions = in.getInt(); partitions > 0; partitions--) {
        in.getInt();
        succeeded(in.getShort());
        committed = in.getLong();
        in.getLong();
        in.getLong();
        int aborted = in.getInt();
        in.position(in.position() + 16 * Math.max(0, aborted));
        int length = Math.max(0, in.getInt());
        if (length > in.remaining()) {
          throw new IOException("a fetch response is shorter than it says");
        }
        at = MemoryUtil.getByteBufferAddress(in) + in.position();
        end = at + length;
        in.position(in.position() + length);
      }
    }
  }

  private void succeeded(short error) throws KafkaError {
    if (error != KafkaError.NONE) {
      throw new KafkaError(error, "fetching " + location.partition() + " from " + location.endpoint());
    }
  }

  @Override
  public boolean hasBatch() {
    if (size == 0) {
      size = RecordBatch.size(at, end - at);
    }
    return size > 0;
  }

  @Override
  public long address() {
    return at;
  }

  @Override
  public int size() {
    return size;
  }

  @Override
  public void pass() {
    at += size;
    size = 0;
  }

  @Override
  public boolean intact() {
    return true;
  }

  @Override
  public long barrenUntil() {
    return emptyAnswers >= CONVINCED ? committed : -1;
  }

  @Override
  public void close() {
    if (connection != null) {
      if (asked == NOTHING_ASKED) {
        cluster.giveBack(connection);
      } else {
        connection.close();
      }
    }
    connection = null;
    asked = NOTHING_ASKED;
    size = 0;
    at = 0;
    end = 0;
  }

  /** Ends it after a failure: the connection may be out of step. */
  void abandon() {
    if (connection != null) {
      connection.close();
      connection = null;
    }
    close();
  }
}
