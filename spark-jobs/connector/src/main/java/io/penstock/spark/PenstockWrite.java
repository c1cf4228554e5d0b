package io.penstock.spark;

import io.penstock.client.Producer;
import io.penstock.client.ProducerSettings;
import io.penstock.client.Producers;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/**
 * A streaming query's sink, at least once: a task's records are in the topic before it commits, and a task
 * or an epoch that runs again writes again. An epoch's transaction would begin in the writer and end in
 * {@link #commit}.
 */
final class PenstockWrite implements Write, StreamingWrite {
  private final SinkOptions options;
  private final SinkColumns columns;

  private PenstockWrite(SinkOptions options, SinkColumns columns) {
    this.options = options;
    this.columns = columns;
  }

  /** A topic only grows: update and complete mode append their rows too, as with Spark's Kafka sink. */
  static final class Builder implements WriteBuilder, SupportsTruncate, SupportsStreamingUpdateAsAppend {
    private final LogicalWriteInfo info;

    Builder(LogicalWriteInfo info) {
      this.info = info;
    }

    @Override
    public WriteBuilder truncate() {
      return this;
    }

    @Override
    public Write build() {
      SinkOptions options = new SinkOptions(info.options());
      return new PenstockWrite(options, new SinkColumns(info.schema(), options.topic));
    }
  }

  @Override
  public String description() {
    return "Penstock";
  }

  @Override
  public StreamingWrite toStreaming() {
    return this;
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    return new WriterFactory(options.producer, columns);
  }

  @Override
  public boolean useCommitCoordinator() {
    return false;
  }

  @Override
  public void commit(long epoch, WriterCommitMessage[] messages) {}

  @Override
  public void abort(long epoch, WriterCommitMessage[] messages) {}

  private record WriterFactory(ProducerSettings settings, SinkColumns columns)
      implements StreamingDataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      try {
        return new Writer(settings, columns);
      } catch (IOException e) {
        throw new java.io.UncheckedIOException(e);
      }
    }
  }

  private record Written() implements WriterCommitMessage {}

  /** One task's writer. Its producer sends by itself: a real-time sink is not told when the source is idle. */
  static final class Writer implements DataWriter<InternalRow> {
    private final ProducerSettings settings;
    private final SinkColumns columns;
    private final Producer producer;
    private boolean flushed;

    Writer(ProducerSettings settings, SinkColumns columns) throws IOException {
      this.settings = settings;
      this.columns = columns;
      this.producer = Producers.take(settings);
    }

    @Override
    public void write(InternalRow row) throws IOException {
      columns.send(row, producer);
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      producer.flush();
      flushed = true;
      return new Written();
    }

    @Override
    public void abort() {}

    @Override
    public void close() {
      if (flushed) {
        Producers.giveBack(settings, producer);
      } else {
        producer.close();
      }
    }
  }
}
