package io.penstock.client;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;

/** Where a broker listens. */
public record Endpoint(String host, int port) implements Serializable {

  /** Reads {@code host:port,host:port}. */
  static List<Endpoint> parse(String servers) {
    List<Endpoint> endpoints = new ArrayList<>();
    for (String server : servers.split(",")) {
      String trimmed = server.trim();
      if (trimmed.isEmpty()) {
        continue;
      }
      int colon = trimmed.lastIndexOf(':');
      try {
        String host = trimmed.substring(0, colon).replaceAll("^\\[|\\]$", "");
        endpoints.add(new Endpoint(host, Integer.parseInt(trimmed.substring(colon + 1))));
      } catch (IndexOutOfBoundsException | NumberFormatException e) {
        throw new IllegalArgumentException("not a host:port among the bootstrap servers: '" + trimmed + "'");
      }
    }
    if (endpoints.isEmpty()) {
      throw new IllegalArgumentException("no bootstrap server in '" + servers + "'");
    }
    return endpoints;
  }

  @Override
  public String toString() {
    return host + ":" + port;
  }
}
