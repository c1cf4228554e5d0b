package io.penstock.spark;

import java.io.IOException;
import java.io.InterruptedIOException;
import org.apache.spark.TaskContext;

/** Waiting inside a task, which must notice that it was cancelled. */
final class Pause {
  private Pause() {}

  static void millis(long ms) throws IOException {
    checkCancelled();
    try {
      Thread.sleep(ms);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("the task was interrupted");
    }
  }

  static void checkCancelled() {
    TaskContext task = TaskContext.get();
    if (task != null) {
      task.killTaskIfInterrupted();
    }
  }
}
