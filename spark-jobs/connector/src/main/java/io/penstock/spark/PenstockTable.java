package io.penstock.spark;

import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Topics as Spark sees them. */
final class PenstockTable implements Table, SupportsRead, SupportsWrite {
  private final CaseInsensitiveStringMap options;

  PenstockTable(CaseInsensitiveStringMap options) {
    this.options = options;
  }

  static StructType schema(CaseInsensitiveStringMap options) {
    return Columns.schema(
        SourceOptions.flag(options, "includeHeaders", false),
        SourceOptions.type(options, "keyType"),
        SourceOptions.type(options, "valueType"));
  }

  @Override
  public String name() {
    return "Penstock";
  }

  @Override
  @SuppressWarnings("deprecation")
  public StructType schema() {
    return schema(options);
  }

  /** No BATCH_WRITE: with it {@code write.save()} would want a mode; see {@link PenstockProvider}. */
  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(
        TableCapability.BATCH_READ,
        TableCapability.MICRO_BATCH_READ,
        TableCapability.STREAMING_WRITE,
        TableCapability.ACCEPT_ANY_SCHEMA);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new PenstockScan.Builder(options, schema(options));
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new PenstockWrite.Builder(info);
  }
}
