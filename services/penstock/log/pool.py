"""The memory budget: segments of shared memory, made once, recycled warm.

A fresh tmpfs page costs a fault (0.7 GB/s cold against 5.8 GB/s warm), so memory that came into the pool
stays. Sizes are powers of two, so that a partition's first segments can be small. The pool takes memory
back in two looks with a while between them (rules S2, S3 and S7): `retire`, then `collect`.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from penstock.shm import layout
from penstock.shm.memory import SegmentMemory

SMALLEST = 32 * 1024
_SPARES = 8
_SHARES = 32
SETTLE_SECONDS = 0.01
"""Between the looks: far more than a reader's pin, stored before it checks the generation, takes to show."""
PinKey = tuple[bytes, int, int]


class MemoryExhausted(Exception):
    """No segment of `size` bytes can be had within the budget now; eviction may bring one."""

    def __init__(self, size: int, total: int, budget: int, why: str = "") -> None:
        super().__init__(f"{total} of {budget} bytes of shared memory in use{why and f' ({why})'}")
        self.size = size


@dataclass(frozen=True, slots=True)
class PoolUse:
    budget: int
    total: int
    free: int
    retiring: int
    detached: int


def size_class(need: int) -> int:
    """The size of the file that holds `need` bytes of batches."""
    return max(SMALLEST, 1 << (need + layout.SEGMENT_HEADER - 1).bit_length())


class SegmentPool:
    def __init__(
        self,
        directory: Path,
        budget: int,
        detached_budget: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.iterdir():
            leftover.unlink()
        self.budget = budget
        self.largest = max(SMALLEST, 1 << max(budget // _SHARES, 1).bit_length() - 1)
        """A partition's segments grow up to this, however few there are."""
        self.detached_budget = budget // 4 if detached_budget is None else detached_budget
        self._total = 0
        self._open_bytes = 0
        """In segments that are still appended to: they can't be evicted."""
        self._free: dict[int, list[SegmentMemory]] = defaultdict(list)
        self._free_bytes = 0
        self._retiring: deque[tuple[float, SegmentMemory]] = deque()
        self._retiring_bytes = 0
        self._detached: list[tuple[PinKey, SegmentMemory]] = []
        self._detached_bytes = 0
        self._names = itertools.count()
        self._asked: Counter[int] = Counter()
        """Sizes that were asked for since the last orders."""
        self._clock = clock
        self.taken_from_readers = 0
        """How often memory was taken although a reader had pinned it: it must read again by pull."""

    @property
    def use(self) -> PoolUse:
        return PoolUse(self.budget, self._total, self._free_bytes, self._retiring_bytes, self._detached_bytes)

    @property
    def available(self) -> int:
        """Bytes that can be handed out without taking anything away."""
        return self._free_bytes + max(0, self.budget - self._total)

    def share(self, held: int) -> int:
        """How large the next segment of a partition may be whose newest takes `held` bytes.

        Half the budget is for segments that are appended to, and each gets half of what the others leave
        of it: n busy partitions come to 1/(n+1) each. If they had it all, nothing could ever be evicted.
        """
        left = self.budget // 2 - self._open_bytes + held
        return min(self.largest, max(SMALLEST, 1 << max(left // 2, 1).bit_length() - 1))

    def sealed(self, memory: SegmentMemory) -> None:
        """Nothing more is appended to it."""
        if memory.is_open:
            memory.is_open = False
            self._open_bytes -= memory.size

    def _opened(self, memory: SegmentMemory) -> SegmentMemory:
        memory.is_open = True
        self._open_bytes += memory.size
        return memory

    def acquire(self, need: int) -> SegmentMemory:
        """A segment with room for `need` bytes, to be given an owner with `assign`."""
        size = size_class(need)
        self._asked[size] += 1
        free = self._free[size]
        if free:
            memory = free.pop()
            self._free_bytes -= size
            return self._opened(memory)
        while self._total + size > self.budget and self._free_bytes:
            self._drop_one_free()
        if self._total + size > self.budget:
            raise self.exhausted(size)
        try:
            memory = self._create(size)
        except OSError as error:  # the file system behind shared memory is smaller than the budget
            raise self.exhausted(size, str(error)) from None
        self._total += size
        return self._opened(memory)

    def exhausted(self, size: int, why: str = "") -> MemoryExhausted:
        return MemoryExhausted(size, self._total, self.budget, why)

    def _create(self, size: int) -> SegmentMemory:
        return SegmentMemory.create(self._directory / f"{next(self._names)}{layout.SEGMENT_SUFFIX}", size)

    def take_orders(self) -> list[int]:
        """Sizes of segments that will be asked for soon, counted as if they were there already: `make`
        them on a thread, then `deliver`. A fresh 16 MiB takes milliseconds; no append should wait so long."""
        orders = []
        for size, asked in self._asked.items():
            missing = min(asked + 1, _SPARES) - len(self._free[size])
            while missing > 0 and self._total + size <= self.budget:
                self._total += size
                orders.append(size)
                missing -= 1
        self._asked.clear()
        return orders

    def make(self, orders: list[int]) -> list[SegmentMemory]:
        """On a thread. What can't be made is left out."""
        made = []
        for size in orders:
            try:
                made.append(self._create(size))
            except OSError:
                break
        return made

    def deliver(self, orders: list[int], made: list[SegmentMemory]) -> None:
        self._total -= sum(orders) - sum(memory.size for memory in made)
        for memory in made:
            self.give_back(memory)

    def adopt(self, memory: SegmentMemory, *, sealed: bool) -> None:
        """Count memory that an earlier process left and a log has taken over."""
        self._total += memory.size
        if not sealed:
            self._opened(memory)

    def give_back(self, memory: SegmentMemory) -> None:
        """Memory that was acquired and never shown to anybody."""
        self.sealed(memory)
        self._free[memory.size].append(memory)
        self._free_bytes += memory.size

    def retire(self, memory: SegmentMemory) -> None:
        """First look: the owner is done with it. Readers that come now find no name and an odd generation."""
        self.sealed(memory)
        memory.mark_retiring()
        memory.move(self._directory / f"{next(self._names)}{layout.SEGMENT_SUFFIX}")
        self._retiring.append((self._clock(), memory))
        self._retiring_bytes += memory.size

    def collect(self, pins: Set[PinKey]) -> None:
        """Second look: of what was retired a while ago, recycle what nobody holds, detach the rest."""
        still_detached = []
        for key, memory in self._detached:
            if key in pins or memory.holds:
                still_detached.append((key, memory))
            else:
                self._forget(memory)
                self._detached_bytes -= memory.size
        self._detached = still_detached
        settled = self._clock() - SETTLE_SECONDS
        for _ in range(len(self._retiring)):
            retired, memory = self._retiring.popleft()
            if retired > settled:
                self._retiring.append((retired, memory))
                continue
            self._retiring_bytes -= memory.size
            key = (memory.topic_id, memory.partition, memory.base_offset)
            if not memory.holds and key not in pins:
                self._recycle(memory)
            elif self._detached_bytes + memory.size <= self.detached_budget:
                memory.unlink()
                self._detached.append((key, memory))
                self._detached_bytes += memory.size
            elif memory.holds:
                # The socket or the disk will let go of it soon; never overwrite what we are sending.
                self._retiring.append((retired, memory))
                self._retiring_bytes += memory.size
            else:
                self.taken_from_readers += 1
                self._recycle(memory)

    def _recycle(self, memory: SegmentMemory) -> None:
        if self._total > self.budget:
            memory.unlink()
            self._forget(memory)
        else:
            self._free[memory.size].append(memory)
            self._free_bytes += memory.size

    def _drop_one_free(self) -> None:
        size = max(size for size, free in self._free.items() if free)
        memory = self._free[size].pop()
        memory.unlink()
        self._free_bytes -= size
        self._forget(memory)

    def _forget(self, memory: SegmentMemory) -> None:
        self._total -= memory.size
