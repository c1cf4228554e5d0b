package io.penstock.spark;

import io.penstock.client.TopicPartition;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * What a batch query asks of a topic that needs no record: how many there are, the least and the greatest
 * offset or partition, in all or for each topic or partition.
 */
record Summary(List<String> groups, List<Figure> figures) implements Serializable {

  enum Figure {
    COUNT(DataTypes.LongType),
    LEAST_OFFSET(DataTypes.LongType),
    GREATEST_OFFSET(DataTypes.LongType),
    LEAST_PARTITION(DataTypes.IntegerType),
    GREATEST_PARTITION(DataTypes.IntegerType);

    final DataType type;

    Figure(DataType type) {
      this.type = type;
    }
  }

  /** A run of records of one partition. */
  record Part(TopicPartition partition, long records, long leastOffset, long greatestOffset) {}

  /** Null if something else is asked for. */
  static Summary of(Aggregation asked) {
    List<String> groups = new ArrayList<>();
    for (Expression expression : asked.groupByExpressions()) {
      String column = column(expression);
      if (!Columns.PARTITION.equals(column) && !Columns.TOPIC.equals(column)) {
        return null;
      }
      groups.add(column);
    }
    List<Figure> figures = new ArrayList<>();
    for (AggregateFunc function : asked.aggregateExpressions()) {
      Figure figure = figure(function);
      if (figure == null) {
        return null;
      }
      figures.add(figure);
    }
    return new Summary(groups, figures);
  }

  private static String column(Expression expression) {
    return expression instanceof NamedReference name && name.fieldNames().length == 1 ? name.fieldNames()[0] : null;
  }

  private static Figure figure(AggregateFunc function) {
    if (function instanceof CountStar) {
      return Figure.COUNT;
    }
    if (function instanceof Count count) {
      String column = column(count.column());
      boolean neverNull = Columns.OFFSET.equals(column) || Columns.PARTITION.equals(column);
      return neverNull && !count.isDistinct() ? Figure.COUNT : null;
    }
    if (function instanceof Min min) {
      return bound(column(min.column()), Figure.LEAST_OFFSET, Figure.LEAST_PARTITION);
    }
    if (function instanceof Max max) {
      return bound(column(max.column()), Figure.GREATEST_OFFSET, Figure.GREATEST_PARTITION);
    }
    return null;
  }

  private static Figure bound(String column, Figure ofOffset, Figure ofPartition) {
    return Columns.OFFSET.equals(column) ? ofOffset : Columns.PARTITION.equals(column) ? ofPartition : null;
  }

  /** The columns of its rows: what it groups by, then its figures, as Spark wants them. */
  StructType schema() {
    StructType schema = new StructType();
    for (String group : groups) {
      schema = schema.add(group, group.equals(Columns.TOPIC) ? DataTypes.StringType : DataTypes.IntegerType);
    }
    for (int i = 0; i < figures.size(); i++) {
      schema = schema.add("figure" + i, figures.get(i).type);
    }
    return schema;
  }

  boolean needsOffsets() {
    return figures.contains(Figure.LEAST_OFFSET) || figures.contains(Figure.GREATEST_OFFSET);
  }

  /** The rows for these parts: one for each group, or one in all, even over nothing. */
  InternalRow[] rows(List<Part> parts) {
    Map<List<Object>, List<Part>> byGroup = new LinkedHashMap<>();
    if (groups.isEmpty()) {
      byGroup.put(List.of(), new ArrayList<>());
    }
    for (Part part : parts) {
      if (part.records() > 0) {
        byGroup.computeIfAbsent(group(part), any -> new ArrayList<>()).add(part);
      }
    }
    return byGroup.entrySet().stream().map(each -> row(each.getKey(), each.getValue())).toArray(InternalRow[]::new);
  }

  private List<Object> group(Part part) {
    List<Object> values = new ArrayList<>();
    for (String group : groups) {
      values.add(group.equals(Columns.TOPIC)
          ? UTF8String.fromString(part.partition().topic())
          : (Object) part.partition().partition());
    }
    return values;
  }

  private InternalRow row(List<Object> group, List<Part> parts) {
    List<Object> values = new ArrayList<>(group);
    figures.forEach(figure -> values.add(value(figure, parts)));
    return new GenericInternalRow(values.toArray());
  }

  private static Object value(Figure figure, List<Part> parts) {
    if (figure == Figure.COUNT) {
      return parts.stream().mapToLong(Part::records).sum();
    }
    if (parts.isEmpty()) {
      return null;
    }
    switch (figure) {
      case LEAST_OFFSET:
        return parts.stream().mapToLong(Part::leastOffset).min().getAsLong();
      case GREATEST_OFFSET:
        return parts.stream().mapToLong(Part::greatestOffset).max().getAsLong();
      case LEAST_PARTITION:
        return parts.stream().mapToInt(part -> part.partition().partition()).min().getAsInt();
      default:
        return parts.stream().mapToInt(part -> part.partition().partition()).max().getAsInt();
    }
  }
}
