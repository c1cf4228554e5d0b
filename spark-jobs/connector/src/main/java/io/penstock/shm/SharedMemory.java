package io.penstock.shm;

import java.io.IOException;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

/**
 * What this process has open of the brokers' memory: one control block per partition, one mapping per
 * segment, one cursor file per broker process, shared by all tasks and queries.
 */
public final class SharedMemory {
  private static final SharedMemory OF_THIS_PROCESS = new SharedMemory();

  /** One broker process as its readers know it. */
  private static final class Host {
    final Node node;
    /** As it was when this was made: node.ctl is written anew, in place, by the broker's next process. */
    final long incarnation;
    final SegmentCache segments = new SegmentCache();
    final Map<Path, PartitionMemory> partitions = new HashMap<>();
    CursorFile cursors;

    Host(Node node, long incarnation) {
      this.node = node;
      this.incarnation = incarnation;
    }
  }

  private final Map<Path, Host> hosts = new HashMap<>();

  private SharedMemory() {}

  public static SharedMemory ofThisProcess() {
    return OF_THIS_PROCESS;
  }

  /** The memory of a partition, if its leader's memory is on this machine. */
  public synchronized PartitionMemory partition(
      Path brokerDirectory, int brokerId, long incarnation, byte[] topicId, int partition, Path directory)
      throws IOException {
    Host host = host(brokerDirectory, brokerId, incarnation);
    PartitionMemory memory = host.partitions.get(directory);
    if (memory == null) {
      memory = new PartitionMemory(host.node, directory, topicId, partition, host.segments);
      host.partitions.put(directory, memory);
    }
    return memory;
  }

  private Host host(Path directory, int brokerId, long incarnation) throws IOException {
    Host host = hosts.get(directory);
    if (host == null || host.incarnation != incarnation || host.node.incarnation() != incarnation) {
      Node node = Node.open(directory, brokerId, incarnation);
      if (host != null) {
        retire(host);
      }
      host = new Host(node, incarnation);
      hosts.put(directory, host);
    }
    return host;
  }

  private static void retire(Host host) {
    // Tasks that still hold a slot of the old file keep it; it goes with the process.
    if (host.cursors != null && host.cursors.unused()) {
      host.cursors.remove();
    }
  }

  /** A cursor for one task in one partition. */
  synchronized CursorFile.Slot cursor(PartitionMemory memory, String label, long offset) throws IOException {
    Host host = hosts.get(memory.node.directory);
    if (host == null || host.node != memory.node) {
      throw new MemoryUnavailable(memory + " has a new owner");
    }
    if (host.cursors == null || !host.cursors.exists()) {
      host.cursors = CursorFile.create(memory.node.directory, label);
    }
    return host.cursors.take(memory.topicId(), memory.partition(), offset);
  }

  /** Forgets a broker process that has died, so that the next look opens its files afresh. */
  public synchronized void forget(PartitionMemory memory) {
    for (Iterator<Host> each = hosts.values().iterator(); each.hasNext(); ) {
      Host host = each.next();
      if (host.node == memory.node) {
        each.remove();
        retire(host);
      }
    }
  }
}
