package io.penstock.spark;

import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** One query over some topics; batch or stream is decided by what Spark asks for. */
final class PenstockScan implements Scan, SupportsReportStatistics {
  private final CaseInsensitiveStringMap options;
  private final StructType schema;
  private final Pruning pruning;
  private final Summary summary;
  private PenstockBatch batch;
  private boolean streaming;

  private PenstockScan(CaseInsensitiveStringMap options, StructType schema, Pruning pruning, Summary summary) {
    this.options = options;
    this.schema = schema;
    this.pruning = pruning;
    this.summary = summary;
  }

  /** Collects what Spark pushes down; it does so for batch queries only. */
  static final class Builder
      implements ScanBuilder,
          SupportsPushDownRequiredColumns,
          SupportsPushDownV2Filters,
          SupportsPushDownAggregates {
    private final Pruning pruning = new Pruning();
    private final CaseInsensitiveStringMap options;
    private StructType schema;
    private Summary summary;
    private KnownSummary known;

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

    /** Asked first, and only if no WHERE is left for Spark: true where offsets alone are the answer. */
    @Override
    public boolean supportCompletePushDown(Aggregation aggregation) {
      Summary asked = Summary.of(aggregation);
      if (asked == null) {
        return false;
      }
      PenstockBatch batch = new PenstockBatch(new SourceOptions(options, false), schema, pruning, null);
      List<Summary.Part> parts = batch.knownParts();
      if (parts == null) {
        return false;
      }
      known = new KnownSummary(asked.schema(), asked.rows(parts), describe(options, pruning, asked) + " from offsets");
      return true;
    }

    @Override
    public boolean pushAggregation(Aggregation aggregation) {
      summary = Summary.of(aggregation);
      return summary != null;
    }

    @Override
    public Scan build() {
      if (summary == null) {
        return new PenstockScan(options, schema, pruning, null);
      }
      return known != null ? known : new PenstockScan(options, summary.schema(), pruning, summary);
    }
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public String description() {
    return describe(options, pruning, summary);
  }

  private static String describe(CaseInsensitiveStringMap options, Pruning pruning, Summary summary) {
    return "Penstock " + SourceOptions.Topics.of(options) + " " + pruning + (summary == null ? "" : " " + summary);
  }

  @Override
  public Batch toBatch() {
    return batch();
  }

  private synchronized PenstockBatch batch() {
    if (batch == null) {
      batch = new PenstockBatch(new SourceOptions(options, false), schema, pruning, summary);
    }
    return batch;
  }

  /** Of a batch only: what a stream has read so far says nothing of what comes. */
  @Override
  public Statistics estimateStatistics() {
    return streaming || summary != null ? RowsAndBytes.UNKNOWN : batch().statistics();
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    streaming = true;
    return new PenstockStream(new SourceOptions(options, true), schema, checkpoint);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return Metrics.all();
  }
}
