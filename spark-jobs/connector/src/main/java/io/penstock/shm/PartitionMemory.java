package io.penstock.shm;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;

/** One partition's directory: its control block and the segments in it. Shared by a process's readers. */
public final class PartitionMemory {
  public final Node node;
  private final Path directory;
  private final Mapping control;
  private final byte[] topicId;
  private final int partition;
  private final long incarnation;
  private final SegmentCache segments;

  PartitionMemory(Node node, Path directory, byte[] topicId, int partition, SegmentCache segments)
      throws IOException {
    this.node = node;
    this.directory = directory;
    this.topicId = topicId;
    this.partition = partition;
    this.segments = segments;
    this.incarnation = node.incarnation();
    this.control = Mapping.readOnly(directory.resolve(Layout.PART_FILE), Layout.PART_SIZE);
    if (!control.has(Layout.PART_MAGIC)
        || control.acquire(Layout.PART_VERSION) != Layout.VERSION
        || !control.matches(Layout.PART_TOPIC, topicId)
        || control.acquire(Layout.PART_PARTITION) != partition) {
      throw new MemoryUnavailable(directory + " belongs to another partition or layout");
    }
  }

  /** Readable only under the incarnation it was found with: positions mean nothing under another. */
  public boolean live() {
    return control.acquire(Layout.PART_STATE) == Layout.PARTITION_STATE_LIVE
        && control.acquire(Layout.PART_INCARNATION) == incarnation
        && node.incarnation() == incarnation;
  }

  public long commit() {
    return control.acquire(Layout.PART_COMMIT);
  }

  public long epoch() {
    return control.acquire(Layout.PART_EPOCH);
  }

  /** Whether a record at this offset is in memory, or will be once there is one. */
  public boolean holds(long offset) {
    if (commit() <= offset) {
      return live();
    }
    long oldest = control.acquire(Layout.PART_OLDEST);
    return live() && oldest >= 0 && Math.max(oldest, control.acquire(Layout.PART_LOG_START)) <= offset;
  }

  /** The base offset of the segment that holds an offset: the greatest one at or below it. */
  long segmentOf(long offset) throws IOException {
    long found = -1;
    try (DirectoryStream<Path> files = Files.newDirectoryStream(directory, "*" + Layout.SEGMENT_SUFFIX)) {
      for (Path file : files) {
        String name = file.getFileName().toString();
        String digits = name.substring(0, name.length() - Layout.SEGMENT_SUFFIX.length());
        long base = digits.chars().allMatch(Character::isDigit) ? Long.parseLong(digits) : -1;
        if (base <= offset && base > found) {
          found = base;
        }
      }
    }
    if (found < 0) {
      throw new MemoryUnavailable("offset " + offset + " is no longer in " + directory);
    }
    return found;
  }

  Segment segment(long base) throws IOException {
    return segments.take(directory.resolve(Layout.segmentName(base)));
  }

  /** To be asked after the segment has been pinned: is this still the memory it was mapped as? */
  boolean isMine(Segment segment, long base) {
    return segment.belongsTo(topicId, partition, base);
  }

  byte[] topicId() {
    return topicId;
  }

  int partition() {
    return partition;
  }

  @Override
  public String toString() {
    return directory.toString();
  }
}
