"""Writes down what a scheduler asks its manager, and what it is answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from vllm.v1.kv_offload.base import OffloadingManager, OffloadKey, ReqContext


class Recorder(OffloadingManager):
    """A manager in front of another; the two may be of different makes.

    Slot numbers are left out: which slot a chunk gets is the manager's own affair.
    """

    def __init__(self, manager: OffloadingManager) -> None:
        self.manager = manager
        self.script: list[tuple[Any, ...]] = []

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> Any:
        result = self.manager.lookup(key, req_context)
        self.script.append(("lookup", req_context.req_id, key, result))
        return result

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Any:
        spec = self.manager.prepare_load(keys, req_context)
        self.script.append(("prepare_load", req_context.req_id, *keys))
        return spec

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.script.append(("touch", req_context.req_id, *keys))
        self.manager.touch(keys, req_context)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.script.append(("complete_load", req_context.req_id, *sorted(keys)))
        self.manager.complete_load(keys, req_context)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Any:
        output = self.manager.prepare_store(keys, req_context)
        answer = output and (tuple(output.keys_to_store), tuple(output.evicted_keys))
        self.script.append(("prepare_store", req_context.req_id, *keys, answer))
        return output

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        self.script.append(("complete_store", req_context.req_id, *sorted(keys), success))
        self.manager.complete_store(keys, req_context, success)

    def on_new_request(self, req_context: ReqContext) -> Any:
        return self.manager.on_new_request(req_context)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.script.append(("finished", req_context.req_id))
        self.manager.on_request_finished(req_context)

    def on_schedule_end(self, context: Any) -> None:
        self.manager.on_schedule_end(context)

    def take_events(self) -> Iterable[Any]:
        for event in self.manager.take_events():
            self.script.append(("event", event.removed, event.medium, *sorted(event.keys)))
            yield event

    def reset_cache(self) -> None:
        self.script.append(("reset",))
        self.manager.reset_cache()

    def get_stats(self) -> Any:
        return self.manager.get_stats()
