package io.penstock.shm;

/**
 * The shared-memory layout: the constants of {@code services/penstock/shm/layout.py}, where the files
 * are drawn and the rules for readers told. {@code tests/unit/test_layout.py} fails when one side
 * changes alone.
 */
public final class Layout {
  public static final int VERSION = 1;
  public static final int WORD = 8;

  public static final String NODE_FILE = "node.ctl";
  public static final int NODE_SIZE = 4096;
  public static final String NODE_MAGIC = "PSTKNODE";
  public static final int NODE_VERSION = 8;
  public static final int NODE_BROKER = 16;
  public static final int NODE_INCARNATION = 24;
  public static final int NODE_HEARTBEAT = 64;

  public static final String PART_FILE = "part.ctl";
  public static final int PART_SIZE = 4096;
  public static final String PART_MAGIC = "PSTKPART";
  public static final int PART_VERSION = 8;
  public static final int PART_TOPIC = 16;
  public static final int PART_PARTITION = 32;
  public static final int PART_INCARNATION = 64;
  public static final int PART_STATE = 72;
  public static final int PART_EPOCH = 80;
  public static final int PART_PROMISED = 88;
  public static final int PART_COMMIT = 128;
  public static final int PART_APPEND = 192;
  public static final int PART_LOG_START = 256;
  public static final int PART_OLDEST = 264;
  public static final int PART_NEWEST = 272;

  public static final String SEGMENT_SUFFIX = ".seg";
  public static final String SEGMENT_MAGIC = "PSTKSEGM";
  public static final int SEGMENT_GENERATION = 8;
  public static final int SEGMENT_TOPIC = 16;
  public static final int SEGMENT_PARTITION = 32;
  public static final int SEGMENT_BASE = 40;
  public static final int SEGMENT_WRITTEN = 64;
  public static final int SEGMENT_NEXT = 72;
  public static final int SEGMENT_MAX_TIME = 80;
  public static final int SEGMENT_FLUSHED = 88;
  public static final int SEGMENT_HEADER = 4096;

  public static final String CURSOR_DIR = "cursors";
  public static final String CURSOR_SUFFIX = ".cur";
  public static final String CURSOR_MAGIC = "PSTKCURS";
  public static final int CURSOR_VERSION = 8;
  public static final int CURSOR_SLOTS = 16;
  public static final int CURSOR_HEARTBEAT = 24;
  public static final int CURSOR_LABEL = 32;
  public static final int CURSOR_LABEL_SIZE = 96;
  public static final int CURSOR_HEADER = 128;
  public static final int CURSOR_SLOT_SIZE = 128;
  public static final int CURSOR_DEFAULT_SLOTS = 511;
  public static final int SLOT_TOPIC = 0;
  public static final int SLOT_PARTITION = 16;
  public static final int SLOT_STATE = 24;
  public static final int SLOT_PINNED = 32;
  public static final int SLOT_FINISHED = 40;
  public static final int SLOT_PUSH_RECORDS = 48;
  public static final int SLOT_PUSH_BYTES = 56;
  public static final int SLOT_PULL_RECORDS = 64;
  public static final int SLOT_PULL_BYTES = 72;

  public static final int PARTITION_STATE_LIVE = 1;
  public static final int PARTITION_STATE_SUSPECT = 2;
  public static final int PARTITION_STATE_FENCED = 3;
  public static final int PARTITION_STATE_GONE = 4;

  public static final int SLOT_STATE_FREE = 0;
  public static final int SLOT_STATE_PUSH = 1;
  public static final int SLOT_STATE_PULL = 2;

  private Layout() {}

  static String segmentName(long baseOffset) {
    return String.format("%020d%s", baseOffset, SEGMENT_SUFFIX);
  }
}
