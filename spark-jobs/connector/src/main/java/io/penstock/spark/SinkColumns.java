package io.penstock.spark;

import io.penstock.client.Producer;
import io.penstock.record.BatchWriter.Header;
import java.io.IOException;
import java.io.Serializable;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;

/** The columns of a row to be written, by name as in Spark's Kafka sink: value, and if there are any key,
 * topic, headers, partition. */
final class SinkColumns implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final int NONE = -1;

  private final String topicOption;
  private final int topic;
  private final int key;
  private final int value;
  private final int headers;
  private final int partition;
  private final boolean keyIsText;
  private final boolean valueIsText;

  SinkColumns(StructType schema, String topicOption) {
    this.topicOption = topicOption;
    topic = find(schema, Columns.TOPIC, StringType.class);
    key = find(schema, Columns.KEY, StringType.class, BinaryType.class);
    value = find(schema, Columns.VALUE, StringType.class, BinaryType.class);
    headers = find(schema, Columns.HEADERS, ArrayType.class);
    partition = find(schema, Columns.PARTITION, IntegerType.class);
    if (value == NONE) {
      throw new IllegalArgumentException("Required attribute 'value' not found: name the column to be written"
          + " 'value', as string or binary");
    }
    if (topicOption == null && topic == NONE) {
      throw new IllegalArgumentException("topic option required when no 'topic' attribute is present. Use the"
          + " topic option for setting a topic.");
    }
    keyIsText = key != NONE && schema.fields()[key].dataType() instanceof StringType;
    valueIsText = schema.fields()[value].dataType() instanceof StringType;
  }

  @SafeVarargs
  private static int find(StructType schema, String name, Class<? extends DataType>... types) {
    for (int column = 0; column < schema.size(); column++) {
      if (schema.fields()[column].name().equalsIgnoreCase(name)) {
        DataType found = schema.fields()[column].dataType();
        if (Arrays.stream(types).noneMatch(type -> type.isInstance(found))) {
          List<String> wanted = Arrays.stream(types).map(type -> type.getSimpleName().replace("Type", "")).toList();
          throw new IllegalArgumentException("Attribute '" + name + "' is " + found.simpleString() + "; it must be "
              + String.join(" or ", wanted).toLowerCase(java.util.Locale.ROOT));
        }
        return column;
      }
    }
    return NONE;
  }

  void send(InternalRow row, Producer producer) throws IOException {
    String target = topicOption;
    if (target == null) {
      if (row.isNullAt(topic)) {
        throw new NullPointerException("null topic present in the data. Use the topic option for setting a topic.");
      }
      target = row.getUTF8String(topic).toString();
    }
    Integer wanted = partition == NONE || row.isNullAt(partition) ? null : Integer.valueOf(row.getInt(partition));
    producer.send(target, wanted, bytes(row, key, keyIsText), bytes(row, value, valueIsText), headers(row));
  }

  private static byte[] bytes(InternalRow row, int column, boolean text) {
    if (column == NONE || row.isNullAt(column)) {
      return null;
    }
    return text ? row.getUTF8String(column).getBytes() : row.getBinary(column);
  }

  private Header[] headers(InternalRow row) {
    if (headers == NONE || row.isNullAt(headers)) {
      return null;
    }
    ArrayData list = row.getArray(headers);
    Header[] all = new Header[list.numElements()];
    for (int i = 0; i < all.length; i++) {
      InternalRow header = list.getStruct(i, 2);
      all[i] = new Header(header.getUTF8String(0).getBytes(), header.isNullAt(1) ? null : header.getBinary(1));
    }
    return all;
  }
}
