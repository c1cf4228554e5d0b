package io.penstock.spark;

import io.penstock.client.Mode;
import io.penstock.client.ProducerSettings;
import io.penstock.record.Codec;
import java.io.Serializable;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What {@code .option(...)} said of a write: the options of Spark's Kafka sink. */
final class SinkOptions implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final Logger LOG = LoggerFactory.getLogger(SinkOptions.class);
  private static final Set<String> KNOWN = Set.of(
      "topic", "includeheaders", "penstock.bootstrap.servers", "checkpointlocation", "queryname", "path",
      "asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms");
  private static final Set<String> HEEDED = Set.of(
      "kafka.bootstrap.servers", "kafka.client.id", "kafka.socket.connection.setup.timeout.ms",
      "kafka.request.timeout.ms", "kafka.default.api.timeout.ms",
      "kafka.security.protocol", "kafka.compression.type", "kafka.batch.size", "kafka.buffer.memory",
      "kafka.delivery.timeout.ms", "kafka.linger.ms");
  private static final Set<String> REFUSED = Set.of("kafka.key.serializer", "kafka.value.serializer");
  private static final int BATCH_BYTES = 256 << 10;

  final String topic;
  final ProducerSettings producer;

  SinkOptions(CaseInsensitiveStringMap options) {
    for (Map.Entry<String, String> option : options.asCaseSensitiveMap().entrySet()) {
      check(option.getKey());
    }
    topic = options.get("topic");
    producer = new ProducerSettings(
        SourceOptions.settings(options, Mode.PULL),
        SourceOptions.choice(options, "kafka.compression.type", Codec.class, Codec.NONE),
        options.getInt("kafka.batch.size", BATCH_BYTES),
        options.getLong("kafka.buffer.memory", 32 << 20),
        options.getLong("kafka.delivery.timeout.ms", 120_000),
        options.getLong("kafka.linger.ms", 0));
  }

  private static void check(String option) {
    String name = option.toLowerCase(Locale.ROOT);
    if (REFUSED.contains(name)) {
      throw new IllegalArgumentException("The option '" + option + "' is not supported: keys and values are"
          + " written as they are. Remove it, and cast the columns to string or binary.");
    }
    if (name.startsWith("kafka.")) {
      if (!HEEDED.contains(name)) {
        LOG.info("The option {} has no meaning for the penstock sink and is ignored", option);
      }
    } else if (!KNOWN.contains(name)) {
      throw new IllegalArgumentException("Unknown option '" + option + "' of the penstock sink. Remove it or"
          + " correct its name; known are " + new TreeSet<>(KNOWN) + " and kafka.*.");
    }
  }
}
