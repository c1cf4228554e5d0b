package io.penstock.shm;

import java.io.IOException;
import java.nio.file.Path;

/** A broker's {@code node.ctl}: which process serves this directory, and whether it is alive. */
public final class Node {
  public final Path directory;
  private final Mapping control;

  private Node(Path directory, Mapping control) {
    this.directory = directory;
    this.control = control;
  }

  /** Opens it if the expected broker process serves the directory: only then is the reader on its machine. */
  static Node open(Path directory, int brokerId, long incarnation) throws IOException {
    Mapping control = Mapping.readOnly(directory.resolve(Layout.NODE_FILE), Layout.NODE_SIZE);
    Node node = new Node(directory, control);
    if (!control.has(Layout.NODE_MAGIC) || control.acquire(Layout.NODE_VERSION) != Layout.VERSION) {
      throw new MemoryUnavailable(directory + " has another layout than version " + Layout.VERSION);
    }
    if (control.acquire(Layout.NODE_BROKER) != brokerId || node.incarnation() != incarnation) {
      throw new MemoryUnavailable(directory + " is not served by broker " + brokerId + " as of now");
    }
    return node;
  }

  public long incarnation() {
    return control.acquire(Layout.NODE_INCARNATION);
  }

  public Pulse pulse() {
    return new Pulse();
  }

  /** The broker's heartbeat as one observer sees it, by its own clock. */
  public final class Pulse {
    private static final long PATIENCE_NANOS = 1_000_000_000L;
    private long seen = control.acquire(Layout.NODE_HEARTBEAT);
    private long since = System.nanoTime();

    /** False once the counter has stood still for a second between two looks of ours. */
    public boolean beats() {
      long now = System.nanoTime();
      long beat = control.acquire(Layout.NODE_HEARTBEAT);
      if (beat != seen) {
        seen = beat;
        since = now;
      }
      return now - since < PATIENCE_NANOS;
    }

    /** Forgets the time in which nobody looked: a reader that was busy has not watched a standstill. */
    public void restart() {
      since = System.nanoTime();
    }
  }
}
