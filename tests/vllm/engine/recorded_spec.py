"""The spec `kvferry` with recorded transfers, for workers in processes of their own.

vLLM imports it there by its name. Each rank writes what it counted into the folder that
`KVFERRY_ENGINE_COUNTS` names, before it tells of a transfer's end.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from recording import Recorder

from kvferry.integrations.vllm import host
from kvferry.integrations.vllm.v026 import spec

__all__ = ["RecordedSpec"]


class WritingRecorder(Recorder):
    """A recorder whose counts can be read by other processes."""

    def __init__(self, path: Path, *arguments: Any) -> None:
        super().__init__(*arguments, faults={})
        self._path = path

    def get_finished(self) -> list[Any]:
        ended = super().get_finished()
        if ended:
            self._path.write_text(json.dumps(self.counts))
        return ended


def _make_transfers(caches: Any, per_chunk: int, *arguments: Any) -> WritingRecorder:
    rank = arguments[-1].rank
    transfers = host.make_transfers(caches, per_chunk, *arguments)
    path = Path(os.environ["KVFERRY_ENGINE_COUNTS"]) / f"{rank}.json"
    return WritingRecorder(path, transfers, caches, per_chunk)


class RecordedSpec(spec.KvferrySpec):
    """kvferry's spec."""

    def get_worker(self, kv_caches: Any) -> Any:
        """A worker with recorded transfers."""
        spec.make_transfers = _make_transfers
        return super().get_worker(kv_caches)
