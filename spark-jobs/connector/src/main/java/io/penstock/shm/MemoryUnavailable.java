package io.penstock.shm;

import java.io.IOException;

/** A partition's memory can't be read here (any more). Nothing doubtful was handed out: pull instead. */
public final class MemoryUnavailable extends IOException {
  private static final long serialVersionUID = 1L;

  public MemoryUnavailable(String message) {
    super(message);
  }
}
