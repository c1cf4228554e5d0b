package io.penstock.client;

/** How a source reads: from shared memory, by Fetch, or each where it is best. */
public enum Mode {
  PUSH,
  PULL,
  AUTO
}
