package io.penstock.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.StructType;

/** A summary that offsets alone give: no task runs for it. */
record KnownSummary(StructType readSchema, InternalRow[] rows, String description) implements LocalScan {}
