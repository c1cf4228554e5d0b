package io.penstock.spark;

import io.penstock.client.TopicPartition;
import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.read.streaming.Offset;

/** A place in a stream: the next offset of every partition. */
final class PartitionOffsets extends Offset {
  final Map<TopicPartition, Long> byPartition;

  PartitionOffsets(Map<TopicPartition, Long> byPartition) {
    this.byPartition = Collections.unmodifiableMap(new TreeMap<>(byPartition));
  }

  static PartitionOffsets parse(String json) {
    return new PartitionOffsets(OffsetJson.read(json, "offsets of the checkpoint"));
  }

  /** Offsets that Spark read back from a checkpoint come as JSON only. */
  static Map<TopicPartition, Long> of(Offset offset) {
    return offset instanceof PartitionOffsets ours ? ours.byPartition : parse(offset.json()).byPartition;
  }

  @Override
  public String json() {
    return OffsetJson.write(byPartition);
  }
}
