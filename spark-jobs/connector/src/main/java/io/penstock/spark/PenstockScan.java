package io.penstock.spark;

import java.util.Arrays;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** One query over some topics; batch or stream is decided by what Spark asks for. */
final class PenstockScan implements Scan {
  private final CaseInsensitiveStringMap options;
  private final StructType schema;
  private final Pruning pruning;
  private PenstockBatch batch;

  private PenstockScan(CaseInsensitiveStringMap options, StructType schema, Pruning pruning) {
    this.options = options;
    this.schema = schema;
    this.pruning = pruning;
  }

  /** Collects what Spark pushes down; it does so for batch queries only. */
  static final class Builder implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownV2Filters {
    private final Pruning pruning = new Pruning();
    private final CaseInsensitiveStringMap options;
    private StructType schema;

    Builder(CaseInsensitiveStringMap options, StructType schema) {
      this.options = options;
      this.schema = schema;
    }

    @Override
    public void pruneColumns(StructType required) {
      schema = required;
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
      return Arrays.stream(predicates).filter(each -> !pruning.take(each)).toArray(Predicate[]::new);
    }

    @Override
    public Predicate[] pushedPredicates() {
      return pruning.used();
    }

    @Override
    public Scan build() {
      return new PenstockScan(options, schema, pruning);
    }
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public String description() {
    return "Penstock " + SourceOptions.Topics.of(options) + " " + pruning;
  }

  @Override
  public Batch toBatch() {
    return batch();
  }

  private synchronized PenstockBatch batch() {
    if (batch == null) {
      batch = new PenstockBatch(new SourceOptions(options, false), schema, pruning);
    }
    return batch;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return new PenstockStream(new SourceOptions(options, true), schema, checkpoint);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return Metrics.all();
  }
}
