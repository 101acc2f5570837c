"""The offloading spec `kvferry`, for the installed vLLM.

vLLM imports this module when an engine asks for the spec by its name. On a release that kvferry
does not serve the import fails, with a message that says why.
"""

import importlib
from typing import TYPE_CHECKING

from kvferry.integrations.vllm.support import require

if TYPE_CHECKING:
    from kvferry.integrations.vllm.v026.spec import KvferrySpec
else:
    KvferrySpec = importlib.import_module(f"{require().adapter}.spec").KvferrySpec

__all__ = ["KvferrySpec"]
