"""The verbs of vLLM's `OffloadingHandler`, up to 0.24: one object for both directions.

Nothing here imports vLLM.
"""

from typing import Any, ClassVar

from kvferry.integrations.vllm.transfers import Direction, Ended, Transfers

__all__ = ["HandlerSide"]

_MEDIA: dict[Direction, tuple[str, str]] = {"store": ("GPU", "CPU"), "load": ("CPU", "GPU")}


class HandlerSide:
    """The worker's side of the host tier.

    Attributes:
        UNAVAILABLE: What a load gets whose chunks are not there.
        SLOTS: What a worker finds slots by.
    """

    UNAVAILABLE: ClassVar[type]
    SLOTS: ClassVar[type]

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers

    def transfer_async(self, job_id: int, spec: tuple[Any, Any]) -> bool:
        """Submits a job. Always True: vLLM takes anything else for a fault."""
        source, _ = spec
        direction: Direction = "load" if isinstance(source, self.SLOTS) else "store"
        if isinstance(source, self.UNAVAILABLE):
            self._transfers.refuse(direction, job_id, "its chunks are not in the host tier")
        else:
            self._transfers.submit(direction, job_id, spec)
        return True

    def get_finished(self) -> list[Any]:
        """The jobs that have ended since the last call."""
        return [self._result(job, _MEDIA[job.direction]) for job in self._transfers.get_finished()]

    def wait(self, job_ids: set[int]) -> None:
        """Waits until jobs have ended, however long that takes."""
        self._transfers.wait(job_ids)

    def shutdown(self) -> None:
        """Ends all transfers."""
        self._transfers.shutdown()

    def _result(self, job: Ended, media: tuple[str, str]) -> Any:
        raise NotImplementedError
