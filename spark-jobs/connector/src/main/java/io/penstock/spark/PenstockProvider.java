package io.penstock.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** {@code format("penstock")}. */
public final class PenstockProvider implements TableProvider, DataSourceRegister {

  @Override
  public String shortName() {
    return "penstock";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return PenstockTable.schema(options);
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> options) {
    return new PenstockTable(new CaseInsensitiveStringMap(options));
  }
}
