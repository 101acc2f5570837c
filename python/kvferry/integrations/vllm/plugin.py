"""What an installed vLLM runs at the start of each of its processes.

vLLM finds it through the entry point group `vllm.general_plugins`. It makes names known: to the
factories of vLLM, by their own functions, once these have been imported. It imports nothing of vLLM
itself, which would cost every process most of a second, whether it offloads or not.

An engine that does not use kvferry is to run as if kvferry were not there.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from kvferry.integrations.vllm.log import logger

__all__ = ["CONNECTOR", "SPEC", "register"]

SPEC = "kvferry"
"""The name of the offloading spec."""

CONNECTOR = "KvferryConnector"
"""The name of the connector."""

_PACKAGE = "kvferry.integrations.vllm"


def register() -> None:
    """Makes the spec and the connector known to vLLM. A second call changes nothing."""
    for name, action in _ACTIONS.items():
        if name in sys.modules:
            _run(action, sys.modules[name])
        elif name not in _finder.waiting:
            _finder.waiting[name] = action
    if _finder.waiting and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _register_spec(factory: ModuleType) -> None:
    factory.OffloadingSpecFactory.register_spec(SPEC, f"{_PACKAGE}.spec", "KvferrySpec")


def _register_connector(factory: ModuleType) -> None:
    factory.KVConnectorFactory.register_connector(CONNECTOR, f"{_PACKAGE}.connector", CONNECTOR)


_ACTIONS: dict[str, Callable[[ModuleType], None]] = {
    "vllm.v1.kv_offload.factory": _register_spec,
    "vllm.distributed.kv_transfer.kv_connector.factory": _register_connector,
}


def _run(action: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        action(module)
    except ValueError:
        # Its word for a name that is taken: by an earlier call in this process.
        logger.debug("kvferry: known to %s", module.__name__)
    except Exception:  # noqa: BLE001 - vLLM does not catch what a plug-in raises
        logger.warning("kvferry: could not register with vLLM", exc_info=True)


class _AfterImport(MetaPathFinder):
    """Runs something once a module has been imported, by whoever imports it."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[ModuleType], None]] = {}
        self._finding: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The module as it is, with a loader that tells when it has been imported."""
        if fullname not in self.waiting or fullname in self._finding:
            return None
        # Whoever finds it without us, which asks us again.
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loading(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        """Sees that a module is there."""
        action = self.waiting.pop(module.__name__, None)
        if action is not None:
            _run(action, module)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loading(Loader):
    """Another loader, whose end is told."""

    def __init__(self, loader: Loader, finder: _AfterImport) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module is to look as if nobody had been in between.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.imported(module)


_finder = _AfterImport()
