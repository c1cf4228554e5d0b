"""A thousand partitions are no special case."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from harness import BrokerProcess
from scraping import scrape

PARTITIONS = 1000


def test_the_first_records_of_a_thousand_partitions_are_taken_at_the_first_try(broker: BrokerProcess) -> None:
    """Each needs offsets reserved on disk (R9): all of a request's are reserved in one go."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.create_topics([NewTopic("wide", PARTITIONS)]).values():
        future.result(60)
    problems: list[str] = []
    delivered: set[int] = set()

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            problems.append(str(error))
        else:
            delivered.add(message.partition())

    producer = Producer(
        {"bootstrap.servers": broker.address, "retries": 0, "linger.ms": 200, "message.timeout.ms": 60_000}
    )
    for partition in range(PARTITIONS):
        producer.produce("wide", b"first", partition=partition, on_delivery=on_delivery)
    assert producer.flush(60) == 0
    assert problems == []
    assert delivered == set(range(PARTITIONS))
    # Whoever scrapes gets no series per partition: the page, and the time it takes, stay bounded.
    series = [key for key in scrape(broker.http + "/metrics") if ("topic", "wide") in key[1]]
    assert 0 < len(series) < 40
