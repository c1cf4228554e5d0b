package io.penstock.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** One query over some topics; batch or stream is decided by what Spark asks for. */
final class PenstockScan implements Scan {
  private final CaseInsensitiveStringMap options;
  private final StructType schema;

  private PenstockScan(CaseInsensitiveStringMap options, StructType schema) {
    this.options = options;
    this.schema = schema;
  }

  /** Collects what Spark pushes down. */
  static final class Builder implements ScanBuilder, SupportsPushDownRequiredColumns {
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
    public Scan build() {
      return new PenstockScan(options, schema);
    }
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public String description() {
    return "Penstock " + SourceOptions.Topics.of(options);
  }

  @Override
  public Batch toBatch() {
    return new PenstockBatch(new SourceOptions(options, false), schema);
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
