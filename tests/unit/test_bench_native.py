"""What the native consumer answers, on batches as they come from a broker."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.bench.native import Filter, WindowedWordCount, WordCount
from penstock.wire.records import Compression, Record, encode_batch


def batch(*values: bytes, second: int = 0, compression: Compression = Compression.NONE) -> memoryview:
    records = [Record(offset, second * 1000 + 999, None, value, ()) for offset, value in enumerate(values)]
    return memoryview(encode_batch(records, compression=compression))


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_a_filter_finds_what_has_the_word(compression: Compression) -> None:
    consumer = Filter()
    consumer(batch(b"water", b"a penstock carries it", compression=compression))
    assert consumer.found == [b"a penstock carries it"]


def test_words_are_counted_over_all_batches() -> None:
    consumer = WordCount()
    consumer(batch(b"a b a", b"b"))
    consumer(batch(b"a"))
    assert consumer.counts == {b"a": 3, b"b": 2}


def test_a_word_is_in_each_of_the_five_windows_around_it_until_they_are_over() -> None:
    consumer = WindowedWordCount()
    consumer(batch(b"early", second=100))
    consumer(batch(b"late", second=102))
    assert consumer.windows[98] == Counter({b"early": 1, b"late": 1})
    assert consumer.windows[96] == Counter({b"early": 1})
    assert consumer.windows[101] == Counter({b"late": 1})
    consumer(batch(b"much-later", second=200))
    assert sorted(consumer.windows) == list(range(196, 201))
