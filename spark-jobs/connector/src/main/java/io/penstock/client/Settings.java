package io.penstock.client;

import java.io.Serializable;

/** How to talk to a cluster. Two queries with the same settings share connections. */
public record Settings(
    String servers,
    String clientId,
    boolean wantsMemory,
    String shmRoot,
    long connectTimeoutMs,
    long requestTimeoutMs,
    long patienceMs,
    int fetchBytes)
    implements Serializable {}
