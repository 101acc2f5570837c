"""The comparison itself: it passes equal managers, and it catches each deliberate fault."""

from __future__ import annotations

import pytest

from differential.driver import Driver, SlotError, SlotLedger
from differential.faults import FAULTS, FIRST_WRONG_EVICTION, ROUGH_FAULTS, WrongVictimOnce
from differential.history import History
from differential.lockstep import DifferenceError, run_histories
from differential.reference_driver import ReferenceDriver
from differential.workload import draw_workload

SEED = 5
# The rarest of the faults shows within a few thousand operations.
OPERATIONS = 30_000
CASES = [(policy, fault) for policy, faults in FAULTS.items() for fault in faults]


@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("rough", [False, True], ids=["tidy", "rough"])
def test_equal_managers_pass_and_meet_every_case(policy: str, rough: bool) -> None:
    tally = run_histories(policy, SEED, OPERATIONS, ReferenceDriver, ReferenceDriver, rough=rough)
    expected = {
        *("begin", "complete_load", "complete_store", "extend", "finish", "forget"),
        *("late_load", "lookup", "prepare_load", "prepare_store", "reset"),
        *("store declined", "chunks evicted", "take_events", "touch"),
    }
    expected |= {"target moved"} if policy == "arc" else set()
    if rough:
        expected |= {"prepare_load refused", "complete_load_keys refused", "late_store"}
        expected |= {"cancel", "drop"}
    else:
        expected |= {"complete_store_keys"}
    assert expected <= set(tally.counts)
    assert tally.operations >= OPERATIONS


@pytest.mark.parametrize(("policy", "fault"), CASES, ids=lambda case: getattr(case, "name", case))
def test_each_fault_is_caught(policy: str, fault: type[Driver]) -> None:
    with pytest.raises(DifferenceError):
        run_histories(policy, SEED, OPERATIONS, ReferenceDriver, fault)


@pytest.mark.parametrize("fault", ROUGH_FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_each_fault_in_rough_histories_is_caught(policy: str, fault: type[Driver]) -> None:
    with pytest.raises(DifferenceError):
        run_histories(policy, SEED, OPERATIONS, ReferenceDriver, fault, rough=True)


def test_a_difference_names_what_is_needed_to_see_it_again() -> None:
    with pytest.raises(DifferenceError) as caught:
        run_histories("lru", SEED, OPERATIONS, ReferenceDriver, WrongVictimOnce)
    report = str(caught.value)
    for part in ("policy lru", "capacity", "step", "seed=", "last 20 operations", "prepare_store"):
        assert part in report
    assert FIRST_WRONG_EVICTION  # The wrong call is the one in the report's last line.
    assert report.splitlines()[-1].lstrip().startswith("(prepare_store")


def test_a_history_is_the_same_for_the_same_workload() -> None:
    first, second = (_operations(seed=3) for _ in range(2))
    assert first == second
    assert first != _operations(seed=4)


def test_capacities_from_one_upwards_come_round() -> None:
    drawn = {draw_workload("lru", SEED, index).capacity for index in range(64)}
    assert set(range(1, 16)) <= drawn
    assert max(drawn) >= 1000


def test_the_ledger_refuses_slots_that_are_out_of_range_taken_or_changed() -> None:
    ledger = SlotLedger(2)
    ledger.stored(1, [b"a"], [1], ())
    with pytest.raises(SlotError):
        ledger.stored(2, [b"b"], [2], ())
    with pytest.raises(SlotError):
        ledger.stored(3, [b"b"], [1], ())
    with pytest.raises(SlotError):
        ledger.loaded(4, [b"a"], [0])
    ledger.loaded(5, [b"a"], [1])
    ledger.stored(6, [b"b"], [1], (b"a",))


def test_the_ledger_keeps_a_draining_slot_until_its_transfers_end() -> None:
    ledger = SlotLedger(1)
    ledger.stored(1, [b"a"], [0], ())
    ledger.loaded(2, [b"a"], [0])
    ledger.reset("drain")
    ledger.ended(1)
    with pytest.raises(SlotError):
        ledger.stored(3, [b"b"], [0], ())
    ledger.ended(2)
    ledger.stored(4, [b"b"], [0], ())


def _operations(seed: int) -> list[tuple[object, ...]]:
    workload = draw_workload("arc", seed, 20)
    history, driver = History(workload), ReferenceDriver(workload)
    operations = []
    for _ in range(300):
        operation = history.next_operation()
        history.observe(operation, getattr(driver, operation[0])(*operation[1:]))
        operations.append(operation)
    return operations
