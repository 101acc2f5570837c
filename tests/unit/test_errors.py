"""The tree of exceptions."""

from __future__ import annotations

import pickle

import pytest

import kvferry

TREE = {
    "KvferryError": Exception,
    "ConcurrentUseError": kvferry.KvferryError,
    "StateError": kvferry.KvferryError,
    "NotResidentError": kvferry.StateError,
    "NotReadyError": kvferry.StateError,
    "NotPinnedError": kvferry.StateError,
    "StalePinError": kvferry.StateError,
    "TransferConflictError": kvferry.StateError,
    "TransferError": kvferry.KvferryError,
    "TransferCancelledError": kvferry.TransferError,
    "QuarantinedError": kvferry.TransferError,
    "RegionError": kvferry.KvferryError,
    "WrongByteError": kvferry.KvferryError,
}


@pytest.mark.parametrize("name", TREE)
def test_every_exception_has_its_place(name: str) -> None:
    exception = getattr(kvferry, name)
    assert exception.__base__ is TREE[name]
    assert exception.__module__ == "kvferry"
    assert exception.__doc__


def test_no_other_exception_is_public() -> None:
    public = {
        name
        for name in kvferry.__all__
        if isinstance(getattr(kvferry, name), type)
        and issubclass(getattr(kvferry, name), BaseException)
    }
    assert public == set(TREE)


@pytest.mark.parametrize("name", TREE)
def test_an_exception_survives_pickling(name: str) -> None:
    copy = pickle.loads(pickle.dumps(getattr(kvferry, name)("why")))  # noqa: S301 - its own bytes
    assert type(copy).__name__ == name
    assert str(copy) == "why"


def test_a_bad_argument_is_no_error_of_kvferrys_own() -> None:
    manager = kvferry.OffloadingManager(1)
    with pytest.raises(ValueError, match="key") as raised:
        manager.lookup(b"")
    assert not isinstance(raised.value, kvferry.KvferryError)


def test_an_error_of_the_tier_names_the_place_of_the_key() -> None:
    manager = kvferry.OffloadingManager(4)
    manager.complete_store(manager.prepare_store([b"a"]))
    with pytest.raises(kvferry.NotResidentError, match=r"^key 2 is not resident$"):
        manager.prepare_load([b"a", b"a", b"b"])
