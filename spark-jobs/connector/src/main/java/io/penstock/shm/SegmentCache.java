package io.penstock.shm;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The process's mappings. A fresh mapping costs a page fault for every 4 KiB, so segments stay mapped
 * between tasks; one whose memory was given away is forgotten soon, since a mapping keeps unlinked memory.
 */
final class SegmentCache {
  private static final int MOST = 4096;
  private static final long SWEEP_NANOS = 1_000_000_000L;

  private final Map<Path, Segment> segments = new LinkedHashMap<>(64, 0.75f, true);
  private long swept = System.nanoTime();

  /** The segment at this path, held for the caller, who lets it go. */
  synchronized Segment take(Path file) throws IOException {
    sweep();
    Segment segment = segments.get(file);
    if (segment != null && segment.current() && segment.hold()) {
      return segment;
    }
    if (segment != null) {
      segments.remove(file);
      segment.drop();
    }
    Segment fresh = Segment.map(file);
    fresh.hold();
    segments.put(file, fresh);
    return fresh;
  }

  private void sweep() {
    long now = System.nanoTime();
    if (now - swept < SWEEP_NANOS && segments.size() < MOST) {
      return;
    }
    swept = now;
    List<Segment> gone = new ArrayList<>();
    int surplus = segments.size() - MOST + 1;
    for (Iterator<Segment> each = segments.values().iterator(); each.hasNext(); ) {
      Segment segment = each.next();
      if (surplus-- > 0 || !segment.current()) {
        each.remove();
        gone.add(segment);
      }
    }
    gone.forEach(Segment::drop);
  }
}
