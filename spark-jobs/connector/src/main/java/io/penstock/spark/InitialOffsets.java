package io.penstock.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.function.Supplier;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;

/**
 * The offsets a query began with, kept in its checkpoint before the first batch is: a query that starts at
 * «latest» and dies at once must not begin somewhere else next time. The file is the one of Spark's Kafka
 * source (a zero byte, a version, the JSON), so that a checkpoint can change hands.
 */
final class InitialOffsets {
  private static final String VERSION = "v1";

  private final Path file;

  InitialOffsets(String checkpoint) {
    this.file = new Path(checkpoint, "0");
  }

  PartitionOffsets readOr(Supplier<PartitionOffsets> first) {
    try {
      FileSystem files = file.getFileSystem(SparkContext.getOrCreate().hadoopConfiguration());
      if (files.exists(file)) {
        return read(files);
      }
      PartitionOffsets offsets = first.get();
      write(files, offsets);
      return offsets;
    } catch (IOException e) {
      throw new UncheckedIOException("the initial offsets in " + file + " can't be kept", e);
    }
  }

  private PartitionOffsets read(FileSystem files) throws IOException {
    try (FSDataInputStream in = files.open(file)) {
      String text = new String(in.readAllBytes(), StandardCharsets.UTF_8);
      String[] lines = text.startsWith("\0") ? text.substring(1).split("\n", 2) : new String[] {"", text};
      if (!lines[0].isEmpty() && !lines[0].equals(VERSION)) {
        throw new IOException("written by a later version: " + lines[0]);
      }
      return PartitionOffsets.parse(lines[1]);
    }
  }

  private void write(FileSystem files, PartitionOffsets offsets) throws IOException {
    Path draft = file.suffix(".tmp");
    try (FSDataOutputStream out = files.create(draft, true)) {
      out.write(0);
      out.write((VERSION + "\n" + offsets.json()).getBytes(StandardCharsets.UTF_8));
    }
    if (!files.rename(draft, file)) {
      throw new IOException("can't rename " + draft);
    }
  }
}
