package io.penstock.record;

import java.io.Closeable;
import java.io.IOException;

/**
 * One partition's record batches in the order of the log, a piece of memory at a time: a mapped segment
 * (push) or a fetched response (pull). Batches handed out stay readable until the next {@link #open}.
 */
public interface BatchSource extends Closeable {

  /**
   * Goes to the batch that holds this offset, or to the next one where there is a gap; what was handed out
   * before may go away. False when nothing at or behind the offset is committed yet.
   */
  boolean open(long offset) throws IOException;

  /** Whether another whole, committed batch lies in the piece at hand. */
  boolean hasBatch() throws IOException;

  /** Where the batch at hand begins. */
  long address();

  /** Bytes of the batch at hand. */
  int size();

  /** Moves behind the batch at hand. */
  void pass();

  /** Whether all that was handed out since the last {@link #open} was, and still is, the log. */
  boolean intact();

  /**
   * After {@link #open} said false: between the offset it was asked for and this one there is no record, and
   * never will be (compaction and restarts leave gaps); -1 when that is not sure.
   */
  long barrenUntil();

  @Override
  void close();
}
