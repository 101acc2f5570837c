"""Runs two drivers through histories and stops at the first difference."""

from __future__ import annotations

import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from differential.driver import LISTS, Driver
from differential.history import History, Operation
from differential.workload import Workload, draw_workload

FULL_COMPARISON_EVERY = 1000
SHOWN_OPERATIONS = 20

MakeDriver = Callable[[Workload], Driver]


class DifferenceError(AssertionError):
    """Two managers disagree; the message names the shortest failing prefix of the history."""


class _DisagreementError(Exception):
    """What differs, without the history around it."""


@dataclass
class Tally:
    """What a run went through, so that a test can say that it met the cases it is about."""

    operations: int = 0
    histories: int = 0
    full_comparisons: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        return (
            f"{self.operations:,} operations in {self.histories:,} histories, "
            f"{self.full_comparisons:,} compared in full; {counts}"
        )


class Lockstep:
    """One history in two managers."""

    def __init__(
        self, workload: Workload, make_left: MakeDriver, make_right: MakeDriver, tally: Tally
    ) -> None:
        self.workload = workload
        self.history = History(workload)
        self.left = make_left(workload)
        self.right = make_right(workload)
        self.tally = tally
        self.recent: deque[tuple[Operation, object]] = deque(maxlen=SHOWN_OPERATIONS)
        self.step = 0
        self._target = 0.0

    def run(self, steps: int, full_every: int) -> None:
        """Run `steps` operations, comparing after each."""
        tally = self.tally
        for self.step in range(1, steps + 1):
            self._one_step()
            tally.operations += 1
            if tally.operations % full_every == 0:
                self._compare_in_full()
        self._compare_in_full()

    def _one_step(self) -> None:
        left, right, history = self.left, self.right, self.history
        operation = history.next_operation()
        verb, arguments = operation[0], operation[1:]
        self.recent.append((operation, "not answered"))
        result = getattr(left, verb)(*arguments)
        self.recent[-1] = (operation, result)
        _same("result", result, getattr(right, verb)(*arguments))
        history.observe(operation, result)
        target = left.target()
        _same("target_t1_size", target, right.target())
        if left.digest() != right.digest():
            self._compare_lists()
            raise _DisagreementError("the digest of the lists differs, the lists do not")
        keys = history.sample()
        expected = history.expected(keys)
        _same("lookup of two keys", left.lookup(keys), expected)
        _same("lookup of two keys", right.lookup(keys), expected)
        if self.workload.eager_events:
            _same("events", left.take_events(), right.take_events())
        self._count(verb, result, target)

    def _count(self, verb: str, result: object, target: float) -> None:
        counts = self.tally.counts
        counts[verb] += 1
        if verb == "prepare_store":
            if result is None:
                counts["store declined"] += 1
            else:
                counts["chunks stored"] += len(result[0])
                counts["chunks evicted"] += len(result[1])
        if result == "refused":
            counts[f"{verb} refused"] += 1
        if target != self._target:
            counts["target moved"] += 1
            self._target = target

    def _compare_in_full(self) -> None:
        self.tally.full_comparisons += 1
        self._compare_lists()
        keys = [key for keys in self.history.chunk_keys for key in keys]
        expected = self.history.expected(keys)
        for driver in (self.left, self.right):
            _same(f"lookup of all keys by {driver.name}", driver.lookup(keys), expected)
            driver.check()

    def _compare_lists(self) -> None:
        for name, left, right in zip(LISTS, self.left.lists(), self.right.lists(), strict=True):
            _same(f"list {name}", left, right)

    def describe(self, what: str, found_at: int) -> str:
        """Return a report that is enough to run the history again."""
        lines = [
            f"{self.left.name} and {self.right.name} differ: {what}",
            f"policy {self.workload.policy}, capacity {self.workload.capacity}",
            f"step {self.step} (found at step {found_at})",
            f"workload: {self.workload}",
            f"last {len(self.recent)} operations (key: start of the hash, group):",
        ]
        lines += [f"  {_show(operation)} -> {_show(result)}" for operation, result in self.recent]
        return "\n".join(lines)


def run_history(
    workload: Workload, make_left: MakeDriver, make_right: MakeDriver, tally: Tally
) -> None:
    """Run one history, and on a difference find its shortest failing prefix.

    Raises:
        DifferenceError: if the two managers differ.
    """
    tally.histories += 1
    lockstep = Lockstep(workload, make_left, make_right, tally)
    what = _first_difference(lockstep, workload.steps, FULL_COMPARISON_EVERY)
    if what is None:
        return
    # The lists in full after every step may show the difference before anything else does.
    again = Lockstep(workload, make_left, make_right, Tally())
    shortest = _first_difference(again, lockstep.step, 1)
    if shortest is None:
        raise DifferenceError(lockstep.describe(f"{what} (not on a second run)", lockstep.step))
    raise DifferenceError(again.describe(shortest, lockstep.step))


def _first_difference(lockstep: Lockstep, steps: int, full_every: int) -> str | None:
    try:
        lockstep.run(steps, full_every)
    except _DisagreementError as difference:
        return str(difference)
    except Exception:  # noqa: BLE001 - a manager that raises differs from one that answers
        return traceback.format_exc()
    return None


def workloads(policy: str, seed: int, operations: int, *, rough: bool) -> Iterator[Workload]:
    """Yield workloads until their steps make up `operations`."""
    index, drawn = 0, 0
    while drawn < operations:
        workload = draw_workload(policy, seed, index, rough=rough)
        yield workload
        index += 1
        drawn += workload.steps


def run_histories(
    policy: str,
    seed: int,
    operations: int,
    make_left: MakeDriver,
    make_right: MakeDriver,
    *,
    rough: bool = False,
) -> Tally:
    """Run histories of at least `operations` operations in all.

    Raises:
        DifferenceError: at the first difference.
    """
    tally = Tally()
    for workload in workloads(policy, seed, operations, rough=rough):
        run_history(workload, make_left, make_right, tally)
    return tally


def _same(what: str, left: object, right: object) -> None:
    if left != right:
        raise _DisagreementError(f"{what}: {_show(left)} against {_show(right)}")


def _show(value: object) -> str:
    """Return a short form: keys as hexadecimal without repeating what they share."""
    if isinstance(value, bytes):
        return f"{value[:-4].hex()[:8]}.{int.from_bytes(value[-4:], 'big')}"
    if isinstance(value, (tuple, list)):
        return "(" + " ".join(map(_show, value)) + ")"
    return str(value)
