package io.penstock.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.penstock.client.TopicPartition;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** Offsets per partition in the form of Spark's Kafka source: {@code {"topic":{"0":23,"1":-2}}}. */
final class OffsetJson {
  private static final ObjectMapper JSON = new ObjectMapper();

  private OffsetJson() {}

  static String write(Map<TopicPartition, Long> offsets) {
    ObjectNode root = JSON.createObjectNode();
    new TreeMap<>(offsets).forEach((id, offset) ->
        root.withObjectProperty(id.topic()).put(Integer.toString(id.partition()), offset));
    return root.toString();
  }

  static Map<TopicPartition, Long> read(String json, String option) {
    Map<TopicPartition, Long> offsets = new TreeMap<>();
    tree(json, option, "{\"topicA\":{\"0\":23,\"1\":-1},\"topicB\":{\"0\":-2}}").properties().forEach(topic ->
        topic.getValue().properties().forEach(partition ->
            offsets.put(id(topic.getKey(), partition.getKey(), option), partition.getValue().asLong())));
    return offsets;
  }

  static Set<TopicPartition> readPartitions(String json, String option) {
    Set<TopicPartition> partitions = new TreeSet<>();
    tree(json, option, "{\"topicA\":[0,1],\"topicB\":[2,4]}").properties().forEach(topic ->
        topic.getValue().forEach(partition ->
            partitions.add(id(topic.getKey(), partition.asText(), option))));
    return partitions;
  }

  private static JsonNode tree(String json, String option, String example) {
    try {
      JsonNode root = JSON.readTree(json);
      if (root.isObject()) {
        return root;
      }
    } catch (JsonProcessingException e) {
      // The message below names the option, which the parser doesn't know.
    }
    throw new IllegalArgumentException("Expected e.g. " + example + " in option '" + option + "', got " + json);
  }

  private static TopicPartition id(String topic, String partition, String option) {
    try {
      return new TopicPartition(topic, Integer.parseInt(partition));
    } catch (NumberFormatException e) {
      throw new IllegalArgumentException("'" + partition + "' is not a partition, in option '" + option + "'");
    }
  }
}
