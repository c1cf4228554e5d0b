"""The faults of `make chaos`: a seed decides them all, every kind gets its turn, and each can be played."""

from __future__ import annotations

from itertools import islice

from chaos.faults import Stage, kinds, schedule


def test_a_seed_decides_the_schedule() -> None:
    first, again, other = (list(islice(schedule(seed, kinds(None)), 50)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_every_kind_comes_once_before_any_comes_again() -> None:
    possible = kinds(None)
    rounds = list(islice(schedule(1, possible), 2 * len(possible)))
    drawn = [each.faults[0].kind for each in rounds]
    assert {"etcd kill", "etcd hang", "etcd restart"} < set(possible)
    assert sorted(drawn[: len(possible)]) == sorted(drawn[len(possible) :]) == sorted(possible)
    assert all(hasattr(Stage, f"_{kind.replace(' ', '_')}") for kind in possible)
