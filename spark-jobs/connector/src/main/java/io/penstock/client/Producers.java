package io.penstock.client;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;

/** Producers between two tasks of this process: a producer id and a thread are too dear for every task. */
public final class Producers {
  private static final Map<ProducerSettings, Deque<Producer>> IDLE = new HashMap<>();
  private static final int MOST_IDLE = 16;

  private Producers() {}

  public static Producer take(ProducerSettings settings) throws IOException {
    synchronized (IDLE) {
      Deque<Producer> idle = IDLE.get(settings);
      if (idle != null && !idle.isEmpty()) {
        return idle.pollLast();
      }
    }
    return new Producer(settings);
  }

  /** Only a producer that has been flushed: nothing of one task may fail in another. */
  public static void giveBack(ProducerSettings settings, Producer producer) {
    synchronized (IDLE) {
      Deque<Producer> idle = IDLE.computeIfAbsent(settings, any -> new ArrayDeque<>());
      if (idle.size() < MOST_IDLE) {
        idle.addLast(producer);
        return;
      }
    }
    producer.close();
  }
}
