package io.penstock.spark;

import java.util.Iterator;
import java.util.Map;
import org.apache.spark.api.java.function.VoidFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.CreatableRelationProvider;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/** {@code format("penstock")}. */
public final class PenstockProvider implements TableProvider, DataSourceRegister, CreatableRelationProvider {

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

  /** A batch write goes this old way, the only one on which {@code save()} needs no {@code mode("append")}. */
  @Override
  public BaseRelation createRelation(
      SQLContext context,
      SaveMode mode,
      scala.collection.immutable.Map<String, String> parameters,
      Dataset<Row> rows) {
    if (mode == SaveMode.Overwrite || mode == SaveMode.Ignore) {
      throw new IllegalArgumentException("Save mode " + mode + " is not allowed for Penstock: a topic can only be"
          + " appended to. Use append or leave it out.");
    }
    SinkOptions options = new SinkOptions(new CaseInsensitiveStringMap(CollectionConverters.asJava(parameters)));
    SinkColumns columns = new SinkColumns(rows.schema(), options.topic);
    rows.queryExecution().toRdd().toJavaRDD().foreachPartition(writeAll(options, columns));
    return new Written(context);
  }

  private static VoidFunction<Iterator<InternalRow>> writeAll(SinkOptions options, SinkColumns columns) {
    return rows -> {
      try (PenstockWrite.Writer writer = new PenstockWrite.Writer(options.producer, columns)) {
        while (rows.hasNext()) {
          writer.write(rows.next());
        }
        writer.commit();
      }
    };
  }

  /** Spark wants a relation back from a write, and does nothing with it. */
  private static final class Written extends BaseRelation {
    private final SQLContext context;

    Written(SQLContext context) {
      this.context = context;
    }

    @Override
    public SQLContext sqlContext() {
      return context;
    }

    @Override
    public StructType schema() {
      throw new UnsupportedOperationException("what was written is read with spark.read.format(\"penstock\")");
    }
  }
}
