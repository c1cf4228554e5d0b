package io.penstock.client;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** A request under construction, in Kafka's classic (not flexible) encoding. */
final class Message {
  private byte[] bytes = new byte[256];
  private int size;

  private int room(int more) {
    if (size + more > bytes.length) {
      bytes = Arrays.copyOf(bytes, Math.max(bytes.length * 2, size + more));
    }
    int at = size;
    size += more;
    return at;
  }

  Message int8(int value) {
    bytes[room(1)] = (byte) value;
    return this;
  }

  Message int16(int value) {
    int at = room(2);
    ByteBuffer.wrap(bytes).putShort(at, (short) value);
    return this;
  }

  Message int32(int value) {
    int at = room(4);
    ByteBuffer.wrap(bytes).putInt(at, value);
    return this;
  }

  Message int64(long value) {
    int at = room(8);
    ByteBuffer.wrap(bytes).putLong(at, value);
    return this;
  }

  Message bytes(byte[] value, int length) {
    int at = room(length);
    System.arraycopy(value, 0, bytes, at, length);
    return this;
  }

  Message string(String value) {
    if (value == null) {
      return int16(-1);
    }
    byte[] utf8 = value.getBytes(StandardCharsets.UTF_8);
    return int16(utf8.length).bytes(utf8, utf8.length);
  }

  Message text(String value) {
    byte[] utf8 = value.getBytes(StandardCharsets.UTF_8);
    return int32(utf8.length).bytes(utf8, utf8.length);
  }

  ByteBuffer finished() {
    return ByteBuffer.wrap(bytes, 0, size);
  }

  static String readString(ByteBuffer in) {
    int length = in.getShort();
    return length < 0 ? null : readText(in, length);
  }

  static String readText(ByteBuffer in, int length) {
    byte[] utf8 = new byte[length];
    in.get(utf8);
    return new String(utf8, StandardCharsets.UTF_8);
  }

  static void skipInts(ByteBuffer in) {
    int count = in.getInt();
    in.position(in.position() + 4 * Math.max(0, count));
  }
}
