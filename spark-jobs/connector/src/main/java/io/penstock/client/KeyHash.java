package io.penstock.client;

/** MurmurHash2 (32 bits) with the seed that Kafka's default partitioner has, so that keys land alike. */
final class KeyHash {
  private static final int SEED = 0x9747b28c;
  private static final int MULTIPLIER = 0x5bd1e995;

  private KeyHash() {}

  static int partition(byte[] key, int partitions) {
    return (murmur2(key) & 0x7fffffff) % partitions;
  }

  static int murmur2(byte[] key) {
    int length = key.length;
    int hash = SEED ^ length;
    int at = 0;
    for (; length - at >= 4; at += 4) {
      int block = (key[at] & 0xff) | (key[at + 1] & 0xff) << 8 | (key[at + 2] & 0xff) << 16 | key[at + 3] << 24;
      block *= MULTIPLIER;
      block ^= block >>> 24;
      block *= MULTIPLIER;
      hash = hash * MULTIPLIER ^ block;
    }
    if (at < length) {
      int tail = 0;
      for (int i = length - 1; i >= at; i--) {
        tail = tail << 8 | (key[i] & 0xff);
      }
      hash = (hash ^ tail) * MULTIPLIER;
    }
    hash = (hash ^ hash >>> 13) * MULTIPLIER;
    return hash ^ hash >>> 15;
  }
}
