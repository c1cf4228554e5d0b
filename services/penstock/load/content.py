"""What is in the records of a load: filler, text for word counts, or the ad events of Yahoo's benchmark.

Each is an endless iterator over values, the same for the same seed. Used by `penstock load` and the bench.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_VOCABULARY: Final = 10_000
_EXPONENT: Final = 1.05
"""Of Zipf's law: the frequency of the word of rank r is r ** -1.05, about that of English."""
_VOWELS: Final = "aeiou"
_CONSONANTS: Final = "bcdfghjklmnprstvwz"
CAMPAIGNS: Final = 100
ADS_PER_CAMPAIGN: Final = 10
_EVENT_TYPES: Final = ("view", "click", "purchase")
_AD_TYPES: Final = ("banner", "modal", "sponsored-search", "mail", "mobile")


def filler(size: int, seed: int = 0) -> Iterator[bytes]:
    """Half of it random: compressible about as much as real events are. A tenth has the word of filters."""
    source = random.Random(seed)
    rests = [word * (size // 9 + 1) for word in (b"penstock ", *[b"overflow "] * 9)]
    for rest in itertools.cycle(rests):
        noise = base64.b64encode(source.randbytes(size))[: size // 2]
        yield noise + rest[: size - len(noise)]


def text(size: int, seed: int = 0, file: Path | None = None) -> Iterator[bytes]:
    """Words of a vocabulary by Zipf's law, or of a file, over and over, in records of `size` bytes."""
    words = _words_of(file) if file is not None else _zipf_words(seed)
    left = b""
    while True:
        while len(left) < size:
            left += b" ".join(itertools.islice(words, 512)) + b" "
        yield left[:size]
        left = left[size:].lstrip()


def ad_events(seed: int = 0) -> Iterator[bytes]:
    """Events of Yahoo's streaming benchmark, as JSON. Their time is that of the record."""
    source = random.Random(seed)
    ads = list(campaign_of_ad())
    while True:
        event = {
            "user_id": str(uuid.UUID(int=source.getrandbits(128))),
            "page_id": str(uuid.UUID(int=source.getrandbits(128))),
            "ad_id": source.choice(ads),
            "ad_type": source.choice(_AD_TYPES),
            "event_type": source.choice(_EVENT_TYPES),
            "ip_address": "1.2.3.4",
        }
        yield json.dumps(event, separators=(",", ":")).encode()


def campaign_of_ad() -> dict[str, int]:
    """The table that the events are joined with: always the same."""
    source = random.Random(1)
    count = CAMPAIGNS * ADS_PER_CAMPAIGN
    return {str(uuid.UUID(int=source.getrandbits(128))): number % CAMPAIGNS for number in range(count)}


def _zipf_words(seed: int) -> Iterator[bytes]:
    source = random.Random(seed)
    vocabulary = _vocabulary(random.Random(1))
    weights = list(itertools.accumulate(rank**-_EXPONENT for rank in range(1, len(vocabulary) + 1)))
    while True:
        yield from source.choices(vocabulary, cum_weights=weights, k=1024)


def _vocabulary(source: random.Random) -> list[bytes]:
    """Different words of one to four syllables, the short ones first, as the frequent ones are."""
    found: dict[str, None] = {}
    while len(found) < _VOCABULARY:
        syllables = 1 + (len(found) > 40) + (len(found) > 500) + (len(found) > 4000)
        word = "".join(source.choice(_CONSONANTS) + source.choice(_VOWELS) for _ in range(syllables))
        found[word] = None
    return [word.encode() for word in found]


def _words_of(file: Path) -> Iterator[bytes]:
    """A file's words for ever; it is read once."""
    words = file.read_bytes().split()
    if not words:
        raise ValueError(f"{file} has no words in it")
    return itertools.cycle(words)
