"""What a /metrics page says, by name and labels."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


class Page(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    def of(self, name: str, **labels: str) -> float:
        return self[name, frozenset(labels.items())]

    def sum(self, name: str, **labels: str) -> float:
        """Over all series that have these labels and perhaps others; 0 when there are none."""
        return sum(
            value for key, value in self.items() if key[0] == name and labels.items() <= dict(key[1]).items()
        )


def scrape(url: str) -> Page:
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return Page(
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in families
        for sample in family.samples
    )
