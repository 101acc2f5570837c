"""Slots: which are free, which life each is in, and which still wait for an earlier transfer."""

from __future__ import annotations

from reference.policy import Chunk


class SlotPool:
    """A slot is free, belongs to a chunk, or drains: nobody's, but a transfer still touches it."""

    def __init__(self, capacity: int) -> None:
        self.free = list(reversed(range(capacity)))
        self.generations = [0] * capacity
        # How many transfers each draining slot waits for.
        self.draining: dict[int, int] = {}

    def take(self) -> Chunk:
        """Take a free slot for a new chunk."""
        slot = self.free.pop()
        return Chunk(slot, self.generations[slot])

    def release(self, slot: int) -> None:
        """Free a slot; whatever was told of it before is from an earlier life now."""
        self.generations[slot] += 1
        self.free.append(slot)

    def drain(self, chunk: Chunk) -> None:
        """Keep the slot of a chunk that is gone until its store or its loads end."""
        self.draining[chunk.slot] = abs(chunk.pins)

    def transfer_ended(self, slot: int, generation: int) -> bool:
        """Let go of a draining slot; false if it is not in that life, or drains no more."""
        if self.generations[slot] != generation or slot not in self.draining:
            return False
        self.draining[slot] -= 1
        if self.draining[slot] == 0:
            del self.draining[slot]
            self.release(slot)
        return True

    def fence(self) -> None:
        """Free all draining slots: no transfer touches them any more."""
        for slot in list(self.draining):
            del self.draining[slot]
            self.release(slot)
