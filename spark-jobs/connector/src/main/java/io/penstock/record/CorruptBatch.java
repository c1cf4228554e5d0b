package io.penstock.record;

/** A record batch whose lengths can't be true. */
public final class CorruptBatch extends RuntimeException {
  private static final long serialVersionUID = 1L;

  public CorruptBatch(String message) {
    super(message);
  }
}
