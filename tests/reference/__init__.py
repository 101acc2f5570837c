"""Plain-Python managers that say what the engine must decide.

They are the oracle wherever vLLM's own managers are absent. Each is written for reading: exact,
without any structure that is there for speed alone.
"""

from reference.manager import ReferenceManager
from reference.values import (
    HIT,
    HIT_PENDING,
    MISS,
    Event,
    LoadOutput,
    NotPinnedError,
    NotReadyError,
    StoreOutput,
    Ticket,
)

__all__ = [
    "HIT",
    "HIT_PENDING",
    "MISS",
    "Event",
    "LoadOutput",
    "NotPinnedError",
    "NotReadyError",
    "ReferenceManager",
    "StoreOutput",
    "Ticket",
]
