"""The package's surface: what is public, documented and typed."""

from __future__ import annotations

import ast
import doctest
import enum
import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import kvferry
from kvferry import LookupResult, PinRefused, StoreRejected, _core

NATIVE_CLASSES = [
    value for name in _core.__all__ if isinstance(value := getattr(_core, name), type)
]


def test_what_is_public_exists_and_is_sorted() -> None:
    for name in ("kvferry", "kvferry.keys", "kvferry.results", "kvferry.specs"):
        module = importlib.import_module(name)
        assert sorted(module.__all__) == sorted(set(module.__all__))
        for public in module.__all__:
            assert hasattr(module, public), f"{name}.{public}"


@pytest.mark.parametrize("cls", NATIVE_CLASSES, ids=lambda cls: cls.__name__)
def test_every_native_class_and_member_is_documented(cls: type) -> None:
    assert cls.__doc__
    for name, member in vars(cls).items():
        if not name.startswith("_"):
            assert inspect.getdoc(member), f"{cls.__name__}.{name}"


def test_the_example_of_the_package_says_what_happens() -> None:
    results = doctest.testmod(kvferry)
    assert results.attempted > 5
    assert results.failed == 0


def test_native_verbs_tell_their_arguments() -> None:
    manager = kvferry.OffloadingManager
    assert str(inspect.signature(manager.prepare_store)) == "(self, /, keys, access=None)"
    assert str(inspect.signature(manager.complete_store)) == "(self, /, keys, success=True)"
    assert str(inspect.signature(manager.reset_cache)) == "(self, /, mode='drain')"


def test_the_constructors_signature_states_the_defaults() -> None:
    told = dict(inspect.signature(kvferry.OffloadingManager).parameters)
    manager = kvferry.OffloadingManager(
        4, **{n: p.default for n, p in told.items() if n != "capacity"}
    )
    assert manager.key_bytes == told["key_bytes"].default
    (stub,) = (
        node
        for cls in ast.parse(Path(kvferry.__file__).with_name("_core.pyi").read_text()).body
        if isinstance(cls, ast.ClassDef) and cls.name == "OffloadingManager"
        for node in cls.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    names = [argument.arg for argument in (*stub.args.args[1:], *stub.args.kwonlyargs)]
    values = [ast.literal_eval(d) for d in (*stub.args.defaults, *stub.args.kw_defaults) if d]
    assert names == list(told)
    assert values == [p.default for n, p in told.items() if n != "capacity"]


def test_the_engines_defaults_are_those_of_the_signature() -> None:
    told = inspect.signature(kvferry.OffloadingManager).parameters
    manager = kvferry.OffloadingManager(4)
    with pytest.raises(ValueError, match=f"at most {told['key_bytes'].default}"):
        manager.lookup(bytes(told["key_bytes"].default + 1))
    keys = [b"%d" % i for i in range(4)]
    manager.complete_store(manager.prepare_store(keys))
    most = told["touch_log_capacity"].default
    manager.reader().touch(keys * (most // 4) + keys[:3])
    assert manager.stats().touches_dropped == 3


def test_a_lookups_result_is_a_number_and_a_member() -> None:
    assert issubclass(LookupResult, enum.IntEnum)
    assert [int(result) for result in LookupResult] == [0, 1, 2]
    assert [result.name for result in LookupResult] == ["MISS", "HIT", "HIT_PENDING"]
    assert not LookupResult.MISS


@pytest.mark.parametrize("member", [*LookupResult, *PinRefused, *StoreRejected])
def test_members_survive_pickling(member: enum.Enum) -> None:
    assert pickle.loads(pickle.dumps(member)) is member  # noqa: S301 - its own bytes


def test_importing_kvferry_loads_numpy_and_nothing_heavier() -> None:
    program = (
        "import sys, kvferry; print(*sorted({name.split('.')[0] for name in sys.modules}"
        " - set(sys.stdlib_module_names)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    assert set(loaded) >= {"kvferry", "numpy"}
    assert not {"torch", "vllm", "typer", "rich", "matplotlib", "pandas"} & set(loaded)
