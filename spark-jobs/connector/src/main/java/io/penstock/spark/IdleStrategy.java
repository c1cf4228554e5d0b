package io.penstock.spark;

import java.util.concurrent.locks.LockSupport;

/** What a real-time reader does between two looks at the commit words while there is nothing new. */
abstract class IdleStrategy {

  /** The option {@code idleStrategy}: latency against a core of one's own. */
  enum Kind {
    SPIN,
    YIELD,
    PARK;

    IdleStrategy make() {
      switch (this) {
        case SPIN:
          return new Spin();
        case YIELD:
          return new Yield();
        default:
          return new Park();
      }
    }
  }

  abstract void idle();

  /** There was something: be quick again. */
  void reset() {}

  private static final class Spin extends IdleStrategy {
    @Override
    void idle() {
      Thread.onSpinWait();
    }
  }

  private static final class Yield extends IdleStrategy {
    @Override
    void idle() {
      Thread.yield();
    }
  }

  /** Spins a little, then sleeps, twice as long each time, up to what the median latency can bear. */
  private static final class Park extends IdleStrategy {
    private static final int SPINS = 100;
    private static final long SHORTEST = 5_000;
    private static final long LONGEST = 100_000;
    private int spins;
    private long nap = SHORTEST;

    @Override
    void idle() {
      if (spins < SPINS) {
        spins++;
        Thread.onSpinWait();
        return;
      }
      LockSupport.parkNanos(nap);
      nap = Math.min(LONGEST, nap * 2);
    }

    @Override
    void reset() {
      spins = 0;
      nap = SHORTEST;
    }
  }
}
