"""The logger of kvferry inside vLLM: below vLLM's own, so that its settings and format hold."""

import logging

__all__ = ["logger"]

logger = logging.getLogger("vllm.kvferry")
