"""The connector `KvferryConnector`, for the installed vLLM.

vLLM imports this module when an engine asks for the connector by its name. On a release that
kvferry does not serve, or serves without a connector of its own, the import fails, with a message
that says why.
"""

import importlib
from typing import TYPE_CHECKING

from kvferry.integrations.vllm.support import UnsupportedVllmError, installed_release, require

if TYPE_CHECKING:
    from kvferry.integrations.vllm.v026.connector import KvferryConnector
else:
    _generation = require()
    if not _generation.recompute:
        raise UnsupportedVllmError(
            f"vLLM {installed_release()} cannot recompute a failed load: "
            "use its OffloadingConnector with the spec kvferry"
        )
    KvferryConnector = importlib.import_module(f"{_generation.adapter}.connector").KvferryConnector

__all__ = ["KvferryConnector"]
