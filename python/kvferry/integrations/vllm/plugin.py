"""What an installed vLLM runs at the start of each of its processes.

vLLM finds it through the entry point group `vllm.general_plugins`. It registers names; what they
stand for is imported once an engine asks. It does nothing else: an engine that does not use kvferry
is to run as if kvferry were not there.
"""

from kvferry.integrations.vllm.log import logger

__all__ = ["CONNECTOR", "SPEC", "register"]

SPEC = "kvferry"
"""The name of the offloading spec."""

CONNECTOR = "KvferryConnector"
"""The name of the connector."""


def register() -> None:
    """Registers the spec and the connector. A second call changes nothing; no call raises."""
    try:
        _register()
    except Exception:  # noqa: BLE001 - vLLM does not catch what a plug-in raises
        logger.warning("kvferry: could not register with vLLM", exc_info=True)


def _register() -> None:
    try:
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    except ImportError:
        # A release without offloading: the name stays unknown, which vLLM says if it is asked for.
        logger.debug("kvferry: this vLLM has no offloading specs")
        return
    package = "kvferry.integrations.vllm"
    _once(OffloadingSpecFactory.register_spec, SPEC, f"{package}.spec", "KvferrySpec")

    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    _once(KVConnectorFactory.register_connector, CONNECTOR, f"{package}.connector", CONNECTOR)


def _once(register_name: object, name: str, module: str, member: str) -> None:
    try:
        register_name(name, module, member)  # type: ignore[operator] # vLLM has no types here
    except ValueError:
        # Its word for a name that is taken: by an earlier call in this process.
        logger.debug("kvferry: %s is registered", name)
