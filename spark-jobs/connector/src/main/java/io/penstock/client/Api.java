package io.penstock.client;

/**
 * The requests the connector makes, in the newest version of Kafka's classic encoding that both Apache
 * Kafka and Penstock offer; Subscribe is Penstock's own.
 */
enum Api {
  PRODUCE(0, 7),
  FETCH(1, 10),
  LIST_OFFSETS(2, 2),
  METADATA(3, 7),
  API_VERSIONS(18, 0),
  INIT_PRODUCER_ID(22, 1),
  SUBSCRIBE(20001, 0);

  final short key;
  final short version;

  Api(int key, int version) {
    this.key = (short) key;
    this.version = (short) version;
  }
}
