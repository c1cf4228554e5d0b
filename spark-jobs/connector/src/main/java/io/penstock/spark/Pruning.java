package io.penstock.spark;

import io.penstock.client.Cluster;
import io.penstock.client.TopicPartition;
import io.penstock.record.ByteCondition;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.Cast;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.And;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

/** What a batch query's WHERE says of partitions, offsets, time, keys and values: the rest need not be read. */
final class Pruning {
  private static final long MICROS = 1000;

  private final List<Predicate> used = new ArrayList<>();
  private Set<Long> partitions;
  private long firstPartition = Long.MIN_VALUE;
  private long lastPartition = Long.MAX_VALUE;
  private long firstOffset = Long.MIN_VALUE;
  private long lastOffset = Long.MAX_VALUE;
  private TimeBounds times = TimeBounds.ALWAYS;
  private final List<ByteCondition> conditions = new ArrayList<>();

  /** Takes note of a predicate; true when Spark need not look at it again. */
  boolean take(Predicate predicate) {
    if (predicate instanceof And and) {
      // Both, in any case: what one of them says holds even if Spark must look at the other.
      boolean left = take(and.left());
      return take(and.right()) && left;
    }
    Expression[] parts = predicate.children();
    if (predicate.name().equals("IS_NOT_NULL") && parts[0] instanceof NamedReference column) {
      // Spark adds it to every comparison; all but keys, values and headers are there in every record.
      return column.fieldNames().length == 1 && !Columns.isPayload(column.fieldNames()[0]);
    }
    ByteCondition condition = conditionOf(predicate);
    if (condition != null) {
      conditions.add(condition);
      used.add(predicate);
      return false; // never the last word either
    }
    if (parts.length < 2 || !(parts[0] instanceof NamedReference column) || column.fieldNames().length != 1) {
      return false;
    }
    Set<Long> values = new HashSet<>();
    for (int i = 1; i < parts.length; i++) {
      if (!(parts[i] instanceof Literal<?> literal) || !(literal.value() instanceof Number number)
          || number instanceof Double || number instanceof Float) {
        return false;
      }
      values.add(number.longValue());
    }
    long value = values.iterator().next();
    boolean taken;
    switch (column.fieldNames()[0]) {
      case Columns.PARTITION:
        taken = onPartition(predicate.name(), values, value);
        break;
      case Columns.OFFSET:
        taken = onOffset(predicate.name(), value, values.size());
        break;
      case Columns.TIMESTAMP:
        noteTime(predicate, value);
        return false;
      default:
        return false;
    }
    if (taken) {
      used.add(predicate);
    }
    return taken;
  }

  /** What a predicate says of the bytes of a key or a value; else null. */
  private static ByteCondition conditionOf(Predicate predicate) {
    Expression[] parts = predicate.children();
    String column = parts.length == 2 ? payload(parts[0]) : null;
    byte[] wanted = column != null && parts[1] instanceof Literal<?> literal ? bytes(literal) : null;
    ByteCondition.Kind kind = kind(predicate.name());
    return wanted == null || kind == null ? null : new ByteCondition(column.equals(Columns.KEY), kind, wanted);
  }

  private static ByteCondition.Kind kind(String operator) {
    switch (operator) {
      case "=":
      case "<=>":
        return ByteCondition.Kind.EQUALS;
      case "STARTS_WITH":
        return ByteCondition.Kind.BEGINS;
      case "ENDS_WITH":
        return ByteCondition.Kind.ENDS;
      case "CONTAINS":
        return ByteCondition.Kind.CONTAINS;
      default:
        return null;
    }
  }

  /** The key's or the value's name, if it is that, or its bytes taken as a string; else null. */
  private static String payload(Expression expression) {
    Expression inner = expression;
    if (expression instanceof Cast cast && cast.dataType().equals(DataTypes.StringType)
        && cast.expressionDataType().equals(DataTypes.BinaryType)) {
      inner = cast.expression();
    }
    if (!(inner instanceof NamedReference column) || column.fieldNames().length != 1) {
      return null;
    }
    String name = column.fieldNames()[0];
    return name.equals(Columns.KEY) || name.equals(Columns.VALUE) ? name : null;
  }

  /** Null where bytes don't decide: strings of a collation, and null itself. */
  private static byte[] bytes(Literal<?> literal) {
    if (literal.value() instanceof UTF8String text && literal.dataType().equals(DataTypes.StringType)) {
      return text.getBytes();
    }
    return literal.value() instanceof byte[] bytes ? bytes : null;
  }

  private boolean onPartition(String operator, Set<Long> values, long value) {
    switch (operator) {
      case "=":
      case "<=>":
      case "IN":
        if (partitions == null) {
          partitions = new HashSet<>(values);
        } else {
          partitions.retainAll(values);
        }
        return true;
      case ">":
        firstPartition = Math.max(firstPartition, value + 1);
        return true;
      case ">=":
        firstPartition = Math.max(firstPartition, value);
        return true;
      case "<":
        lastPartition = Math.min(lastPartition, value - 1);
        return true;
      case "<=":
        lastPartition = Math.min(lastPartition, value);
        return true;
      default:
        return false;
    }
  }

  private boolean onOffset(String operator, long value, int values) {
    if (values > 1) {
      return false;
    }
    switch (operator) {
      case "=":
      case "<=>":
        firstOffset = Math.max(firstOffset, value);
        lastOffset = Math.min(lastOffset, value);
        return true;
      case ">":
        firstOffset = Math.max(firstOffset, value + 1);
        return true;
      case ">=":
        firstOffset = Math.max(firstOffset, value);
        return true;
      case "<":
        lastOffset = Math.min(lastOffset, value - 1);
        return true;
      case "<=":
        lastOffset = Math.min(lastOffset, value);
        return true;
      default:
        return false;
    }
  }

  /** Never the last word: Spark looks at every record that is left. */
  private void noteTime(Predicate predicate, long micros) {
    long millis = Math.floorDiv(micros, MICROS);
    switch (predicate.name()) {
      case "=":
      case "<=>":
        times = times.notBefore(millis).notAfter(millis);
        break;
      case ">":
      case ">=":
        times = times.notBefore(millis);
        break;
      case "<":
      case "<=":
        times = times.notAfter(millis);
        break;
      default:
        return;
    }
    used.add(predicate);
  }

  TimeBounds times() {
    return times;
  }

  List<ByteCondition> conditions() {
    return conditions;
  }

  Predicate[] used() {
    return used.toArray(new Predicate[0]);
  }

  List<OffsetRange> prune(List<OffsetRange> ranges, Cluster cluster) {
    List<OffsetRange> left = new ArrayList<>();
    for (OffsetRange range : ranges) {
      long number = range.partition().partition();
      boolean wanted = (partitions == null || partitions.contains(number))
          && number >= firstPartition && number <= lastPartition;
      long from = Math.max(range.from(), firstOffset);
      long until = lastOffset < range.until() ? lastOffset + 1 : range.until();
      if (wanted && from < until) {
        left.add(new OffsetRange(range.partition(), from, until));
      }
    }
    return times.since() == Long.MIN_VALUE ? left : pruneByTime(left, cluster);
  }

  /**
   * Only from below: the broker names the first record at or after a time, and all before it are earlier.
   * Producers' clocks being what they are, nothing follows for those behind it.
   */
  private List<OffsetRange> pruneByTime(List<OffsetRange> ranges, Cluster cluster) {
    Map<TopicPartition, Long> asked = new HashMap<>();
    ranges.forEach(range -> asked.put(range.partition(), Math.max(0, times.since())));
    try {
      Map<TopicPartition, Long> firsts = cluster.offsets(asked);
      List<OffsetRange> left = new ArrayList<>();
      for (OffsetRange range : ranges) {
        long first = firsts.get(range.partition());
        if (first >= 0 && first < range.until()) {
          left.add(new OffsetRange(range.partition(), Math.max(range.from(), first), range.until()));
        }
      }
      return left;
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  @Override
  public String toString() {
    return used.toString();
  }
}
