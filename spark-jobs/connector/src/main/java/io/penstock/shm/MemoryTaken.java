package io.penstock.shm;

import java.io.IOException;

/**
 * Memory was reused under rows that have left already. They can't be called back, so the task must fail;
 * Spark runs it again, and by then that part of the log is read by pull.
 */
public final class MemoryTaken extends IOException {
  private static final long serialVersionUID = 1L;

  public MemoryTaken(String message) {
    super(message);
  }
}
