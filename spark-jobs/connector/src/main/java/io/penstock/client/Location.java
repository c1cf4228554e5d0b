package io.penstock.client;

import io.penstock.shm.MemoryUnavailable;
import io.penstock.shm.PartitionMemory;
import io.penstock.shm.SharedMemory;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Path;
import java.util.HexFormat;

/** Where a partition is led, and where its leader keeps its memory if that is known. */
public record Location(TopicPartition partition, int brokerId, Endpoint endpoint, Memory memory)
    implements Serializable {

  /** A partition's place in its leader's shared memory, the broker process that this holds for, and its extent then. */
  public record Memory(
      String machine,
      String brokerDirectory,
      long incarnation,
      String topicId,
      String directory,
      int leaderEpoch,
      Extent extent)
      implements Serializable {
    Host host() {
      return new Host(brokerDirectory, incarnation);
    }
  }

  /** A broker process, as its memory knows it. */
  record Host(String directory, long incarnation) {}

  /** What Spark calls the machine to read it on: the one that has its memory. */
  public String machine() {
    return memory == null ? endpoint.host() : memory.machine;
  }

  /** Maps the partition if its memory is on this machine. */
  public PartitionMemory map() throws IOException {
    PartitionMemory mapped = SharedMemory.ofThisProcess().partition(
        Path.of(memory.brokerDirectory),
        brokerId,
        memory.incarnation,
        HexFormat.of().parseHex(memory.topicId),
        partition.partition(),
        Path.of(memory.directory));
    if (mapped.epoch() < memory.leaderEpoch) {
      throw new MemoryUnavailable(mapped + " is of an older leader epoch than " + memory.leaderEpoch);
    }
    return mapped;
  }
}
