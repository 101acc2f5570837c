"""What vLLM runs in each of its processes: cheap, harmless, and only a name."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvferry.integrations.vllm import support
from kvferry.integrations.vllm.support import SUPPORTED, UnsupportedVllmError

COST = """
import json, sys, time
import numpy
import vllm.engine.arg_utils
import torch
before = set(sys.modules)
started = time.perf_counter()
from kvferry.integrations.vllm.plugin import register
register()
seconds = time.perf_counter() - started
again = time.perf_counter()
register()
print(json.dumps({
    "seconds": seconds,
    "again": time.perf_counter() - again,
    "new": sorted(set(sys.modules) - before),
    "cuda": torch.cuda.is_initialized(),
}))
"""


def interface() -> Any:
    """The module that has vLLM's manager."""
    try:
        return importlib.import_module("vllm.v1.kv_offload.base")
    except ImportError:
        return importlib.import_module("vllm.v1.kv_offload.abstract")


def run(program: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return result.stdout.strip().splitlines()[-1]


def test_the_plug_in_itself_imports_neither_vllm_nor_torch() -> None:
    program = "import sys, kvferry.integrations.vllm.plugin; print([*sys.modules])"
    modules = {
        name.partition(".")[0] for name in run(program).strip("[]").replace("'", "").split(", ")
    }
    assert modules.isdisjoint({"vllm", "torch"})
    assert "kvferry" in modules


def test_registering_is_cheap_and_initialises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(COST))
    with capsys.disabled():
        print(f"\nplug-in: {1000 * found['seconds']:.1f} ms, again {1000 * found['again']:.2f} ms")
    assert not [name for name in found["new"] if name.partition(".")[0] == "torch"]
    # The adapter is imported once an engine asks for it.
    assert not [name for name in found["new"] if name.startswith("kvferry.integrations.vllm.v")]
    assert not found["cuda"]


def test_the_name_is_found_and_a_second_call_changes_nothing() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    from kvferry.integrations.vllm.plugin import register

    own = set(OffloadingSpecFactory._registry) - {"kvferry"}
    register()
    register()
    assert set(OffloadingSpecFactory._registry) == own | {"kvferry"}
    assert "CPUOffloadingSpec" in own
    assert OffloadingSpecFactory._registry["kvferry"]().__name__ == "KvferrySpec"
    connector = KVConnectorFactory._registry["KvferryConnector"]
    if support.require().recompute:
        assert connector().__name__ == "KvferryConnector"
    else:
        with pytest.raises(UnsupportedVllmError, match="cannot recompute a failed load"):
            connector()


def test_an_engine_that_cannot_have_kvferry_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    from kvferry.integrations.vllm import plugin

    def broken(*_arguments: object) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(OffloadingSpecFactory, "register_spec", broken)
    plugin.register()
    assert "could not register with vLLM" in caplog.text


def test_the_name_is_known_to_whoever_imports_the_factory_later() -> None:
    program = """
import sys
from kvferry.integrations.vllm.plugin import register
register()
register()
assert type(sys.meta_path[0]).__name__ == "_AfterImport"
import vllm.v1.kv_offload.factory as factory
import vllm.distributed.kv_transfer.kv_connector.factory as connectors
assert "kvferry" in factory.OffloadingSpecFactory._registry
assert "KvferryConnector" in connectors.KVConnectorFactory._registry
assert type(factory.__loader__).__name__ == "SourceFileLoader"
assert type(factory.__spec__.loader).__name__ == "SourceFileLoader"
print([type(finder).__name__ for finder in sys.meta_path].count("_AfterImport"))
"""
    assert run(program) == "0"


def test_the_package_declares_the_plug_in(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["vllm.general_plugins"]
    assert declared == {"kvferry": "kvferry.integrations.vllm.plugin:register"}


def test_the_installed_release_is_served() -> None:
    generation = support.require()
    assert generation in SUPPORTED
    assert generation.missing() == []


@pytest.mark.parametrize("release", ["0.34.0", "0.10.2", "1.0"])
def test_another_release_is_refused_with_both_versions(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "installed_release", lambda: release)
    with pytest.raises(UnsupportedVllmError) as error:
        support.require()
    assert f"kvferry {support.__version__} does not know vLLM {release}" in str(error.value)
    assert "0.26 to 0.33" in str(error.value)


def test_a_release_that_lost_something_is_refused_and_told_what(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(interface(), "PrepareStoreOutput")
    with pytest.raises(UnsupportedVllmError, match=r"it has not what .*:PrepareStoreOutput\("):
        support.require()


def test_a_release_with_a_method_that_the_adapter_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = interface().OffloadingManager
    methods = manager.__abstractmethods__ | {"lock"}
    monkeypatch.setattr(manager, "__abstractmethods__", methods)
    with pytest.raises(UnsupportedVllmError, match=r"an implementation of OffloadingManager\.lock"):
        support.require()


def test_a_build_from_source_is_judged_by_what_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "installed_release", lambda: "0.1.dev1+g0123456")
    assert support.require().missing() == []


def test_every_row_of_the_table_is_a_run_of_releases() -> None:
    assert [g.first for g in SUPPORTED] == sorted(g.first for g in SUPPORTED)
    for older, newer in pairwise(SUPPORTED):
        assert older.last < newer.first
    for generation in SUPPORTED:
        assert all(support.generation_of(release) is generation for release in generation.ran)
