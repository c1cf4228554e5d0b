package io.penstock.record;

import com.github.luben.zstd.ZstdInputStream;
import com.github.luben.zstd.ZstdOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;
import net.jpountz.lz4.LZ4FrameInputStream;
import net.jpountz.lz4.LZ4FrameOutputStream;
import org.apache.commons.compress.compressors.lz4.FramedLZ4CompressorInputStream;
import org.xerial.snappy.SnappyInputStream;
import org.xerial.snappy.SnappyOutputStream;

/** Kafka's compressions, numbered as in a batch's attributes, by the codecs in Spark's own jars. */
public enum Codec {
  NONE,
  GZIP,
  SNAPPY,
  LZ4,
  ZSTD;

  private static final Codec[] ALL = values();
  private static final int LZ4_FLAGS_AT = 4;
  private static final int LZ4_INDEPENDENT = 0x20;

  static Codec of(int attributes) {
    int number = attributes & RecordBatch.CODEC_MASK;
    if (number >= ALL.length) {
      throw new CorruptBatch("unknown compression " + number);
    }
    return ALL[number];
  }

  byte[] inflate(byte[] deflated) {
    try (InputStream in = reader(deflated)) {
      return in.readAllBytes();
    } catch (IOException e) {
      throw new CorruptBatch("a batch compressed with " + this + " can't be read: " + e.getMessage());
    }
  }

  private InputStream reader(byte[] deflated) throws IOException {
    InputStream in = new ByteArrayInputStream(deflated);
    switch (this) {
      case GZIP:
        return new GZIPInputStream(in, 1 << 16);
      case SNAPPY:
        // Takes the framed form of Java producers and the bare one of librdkafka.
        return new SnappyInputStream(in);
      case LZ4:
        // Linked blocks are not Kafka's rule, but some producers make them, and only the slow codec reads them.
        boolean linked = deflated.length > LZ4_FLAGS_AT && (deflated[LZ4_FLAGS_AT] & LZ4_INDEPENDENT) == 0;
        return linked ? new FramedLZ4CompressorInputStream(in) : new LZ4FrameInputStream(in);
      case ZSTD:
        return new ZstdInputStream(in);
      default:
        return in;
    }
  }

  public byte[] deflate(byte[] plain, int from, int length) throws IOException {
    ByteArrayOutputStream deflated = new ByteArrayOutputStream(length / 2 + 64);
    try (OutputStream out = writer(deflated)) {
      out.write(plain, from, length);
    }
    return deflated.toByteArray();
  }

  private OutputStream writer(OutputStream out) throws IOException {
    switch (this) {
      case GZIP:
        return new GZIPOutputStream(out);
      case SNAPPY:
        return new SnappyOutputStream(out);
      case LZ4:
        return new LZ4FrameOutputStream(out, LZ4FrameOutputStream.BLOCKSIZE.SIZE_64KB);
      case ZSTD:
        return new ZstdOutputStream(out);
      default:
        return out;
    }
  }
}
