"""The faults of `make chaos`: a seed decides them all, every kind gets its turn, and each can be played."""

from __future__ import annotations

from itertools import islice

from chaos.faults import Stage, kinds, schedule

POSSIBLE = kinds(disks=True, clocks=True)


def test_a_seed_decides_the_schedule() -> None:
    first, again, other = (list(islice(schedule(seed, POSSIBLE), 50)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_every_kind_comes_once_before_any_comes_again() -> None:
    rounds = list(islice(schedule(1, POSSIBLE), 2 * len(POSSIBLE)))
    drawn = [each.faults[0].kind for each in rounds]
    assert {"etcd kill", "one way", "full disk", "clock"} < set(POSSIBLE)
    assert sorted(drawn[: len(POSSIBLE)]) == sorted(drawn[len(POSSIBLE) :]) == sorted(POSSIBLE)
    assert all(hasattr(Stage, f"_{kind.replace(' ', '_')}") for kind in POSSIBLE)


def test_what_a_place_does_not_have_is_left_out_and_nothing_else() -> None:
    assert set(POSSIBLE) - set(kinds(disks=False, clocks=False)) == {"full disk", "clock"}
