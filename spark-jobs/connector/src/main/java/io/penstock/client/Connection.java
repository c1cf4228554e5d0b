package io.penstock.client;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Consumer;

/**
 * One connection to one broker, for one thread at a time. Responses are read straight into memory outside
 * the heap, where record batches are decoded in place; a response is good until the next one is received.
 */
final class Connection implements Closeable {
  private static final int LARGEST = 1 << 30;

  final Endpoint endpoint;
  private final SocketChannel channel;
  private final Selector selector;
  private final String clientId;
  private final ByteBuffer sizeField = ByteBuffer.allocateDirect(4);
  private final Map<Short, Short> versions = new HashMap<>();
  private ByteBuffer response = ByteBuffer.allocateDirect(1 << 14);
  private int sent;
  private int received;
  long idleSince;

  Connection(Endpoint endpoint, Settings settings) throws IOException {
    this.endpoint = endpoint;
    this.clientId = settings.clientId();
    this.channel = SocketChannel.open();
    this.selector = Selector.open();
    try {
      channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
      channel.configureBlocking(false);
      SelectionKey key = channel.register(selector, SelectionKey.OP_CONNECT);
      if (!channel.connect(new InetSocketAddress(endpoint.host(), endpoint.port()))) {
        long deadline = System.nanoTime() + settings.connectTimeoutMs() * 1_000_000;
        while (!channel.finishConnect()) {
          await(key, SelectionKey.OP_CONNECT, deadline);
        }
      }
      greet(settings.requestTimeoutMs());
    } catch (IOException | RuntimeException e) {
      close();
      throw e instanceof IOException io ? io : new IOException("can't connect to " + endpoint + ": " + e, e);
    }
  }

  private void greet(long timeoutMs) throws IOException {
    ByteBuffer answer = call(Api.API_VERSIONS, body -> {}, timeoutMs);
    short error = answer.getShort();
    if (error != KafkaError.NONE) {
      throw new KafkaError(error, "ApiVersions of " + endpoint);
    }
    for (int left = answer.getInt(); left > 0; left--) {
      short key = answer.getShort();
      answer.getShort();
      versions.put(key, answer.getShort());
    }
  }

  boolean offers(Api api) {
    return versions.getOrDefault(api.key, (short) -1) >= api.version;
  }

  ByteBuffer call(Api api, Consumer<Message> body, long timeoutMs) throws IOException {
    send(api, body, timeoutMs);
    return receive(timeoutMs);
  }

  void send(Api api, Consumer<Message> body, long timeoutMs) throws IOException {
    Message message = new Message();
    message.int32(0).int16(api.key).int16(api.version).int32(++sent).string(clientId);
    body.accept(message);
    ByteBuffer frame = message.finished();
    frame.putInt(0, frame.remaining() - 4);
    SelectionKey key = channel.keyFor(selector);
    long deadline = System.nanoTime() + timeoutMs * 1_000_000;
    while (frame.hasRemaining()) {
      if (channel.write(frame) == 0) {
        await(key, SelectionKey.OP_WRITE, deadline);
      }
    }
  }

  /** Whether a response, or the end of the connection, waits to be received. */
  boolean readable() throws IOException {
    channel.keyFor(selector).interestOps(SelectionKey.OP_READ);
    int ready = selector.selectNow();
    selector.selectedKeys().clear();
    return ready > 0;
  }

  /** The body of the next response; they come in the order of the requests. */
  ByteBuffer receive(long timeoutMs) throws IOException {
    long deadline = System.nanoTime() + timeoutMs * 1_000_000;
    sizeField.clear();
    fill(sizeField, deadline);
    int size = sizeField.getInt(0);
    if (size < 4 || size > LARGEST) {
      throw new IOException(endpoint + " doesn't speak Kafka: a response of " + size + " bytes");
    }
    if (response.capacity() < size) {
      response = ByteBuffer.allocateDirect(Math.max(size, Math.min(LARGEST, response.capacity() * 2)));
    }
    response.clear().limit(size);
    fill(response, deadline);
    response.flip();
    int correlation = response.getInt();
    if (correlation != ++received) {
      throw new IOException(endpoint + " answered request " + correlation + " instead of " + received);
    }
    return response;
  }

  private void fill(ByteBuffer buffer, long deadline) throws IOException {
    SelectionKey key = channel.keyFor(selector);
    while (buffer.hasRemaining()) {
      int count = channel.read(buffer);
      if (count < 0) {
        throw new EOFException(endpoint + " closed the connection");
      }
      if (count == 0) {
        await(key, SelectionKey.OP_READ, deadline);
      }
    }
  }

  private void await(SelectionKey key, int operation, long deadline) throws IOException {
    long left = (deadline - System.nanoTime()) / 1_000_000;
    if (left <= 0) {
      throw new SocketTimeoutException(endpoint + " didn't answer in time");
    }
    key.interestOps(operation);
    selector.select(left);
    selector.selectedKeys().clear();
    if (Thread.currentThread().isInterrupted()) {
      throw new ClosedByInterruptException();
    }
  }

  @Override
  public void close() {
    try {
      selector.close();
      channel.close();
    } catch (IOException ignored) {
      // Nobody reads or writes it any more.
    }
  }
}
