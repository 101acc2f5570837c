"""Bookkeeping for KV-cache offloading, with a native engine."""

from kvferry._core import __version__

__all__ = ["__version__"]
