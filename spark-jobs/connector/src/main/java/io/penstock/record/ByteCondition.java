package io.penstock.record;

import java.io.Serializable;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.array.ByteArrayMethods;

/** What a query asks of a record's key or value, told from its bytes where they lie. A null never meets it. */
public final class ByteCondition implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final long ONES = 0x0101010101010101L;
  private static final long HIGHS = 0x8080808080808080L;

  /** How the bytes looked for lie in those of the record. */
  public enum Kind {
    EQUALS,
    BEGINS,
    ENDS,
    CONTAINS
  }

  private final boolean ofKey;
  private final Kind kind;
  private final byte[] wanted;
  /** The first and the last byte looked for, eight times each. */
  private final long firsts;
  private final long lasts;

  public ByteCondition(boolean ofKey, Kind kind, byte[] wanted) {
    this.ofKey = ofKey;
    this.kind = kind;
    this.wanted = wanted;
    this.firsts = wanted.length == 0 ? 0 : ONES * (wanted[0] & 0xff);
    this.lasts = wanted.length == 0 ? 0 : ONES * (wanted[wanted.length - 1] & 0xff);
  }

  boolean ofKey() {
    return ofKey;
  }

  /** A negative length is a null. */
  boolean isMet(long at, int length) {
    if (length < wanted.length) {
      return false;
    }
    switch (kind) {
      case EQUALS:
        return length == wanted.length && isAt(at);
      case BEGINS:
        return isAt(at);
      case ENDS:
        return isAt(at + length - wanted.length);
      default:
        return wanted.length == 0 || isWithin(at, at + length - wanted.length);
    }
  }

  private boolean isAt(long at) {
    return ByteArrayMethods.arrayEquals(null, at, wanted, Platform.BYTE_ARRAY_OFFSET, wanted.length);
  }

  /** Whether it begins somewhere from `at` to `last`. Eight places at a time, and never past the record. */
  private boolean isWithin(long at, long last) {
    if (last - at < 7) {
      return isAtOneOf(at, last);
    }
    for (long place = at; place < last - 7; place += 8) {
      if (isAmongEight(place)) {
        return true;
      }
    }
    return isAmongEight(last - 7);
  }

  private boolean isAmongEight(long at) {
    long differing = (Platform.getLong(null, at) ^ firsts)
        | (Platform.getLong(null, at + wanted.length - 1) ^ lasts);
    // A byte of zero is a place where both ends fit; of the bytes above it some may be taken for one too.
    long fitting = (differing - ONES) & ~differing & HIGHS;
    return fitting != 0 && isAtOneOf(at, at + 7);
  }

  private boolean isAtOneOf(long first, long last) {
    for (long place = first; place <= last; place++) {
      if (isAt(place)) {
        return true;
      }
    }
    return false;
  }
}
