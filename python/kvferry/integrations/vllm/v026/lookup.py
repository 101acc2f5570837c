"""Where a sliding window can be loaded, from the look-up of all of its chunks at once."""

from kvferry.results import LookupResult

__all__ = ["last_window"]

_MISS = bytes([LookupResult.MISS])
_PENDING = LookupResult.HIT_PENDING


def last_window(results: bytes, window: int, first_window: int) -> int | None:
    """The end of the last run of chunks that is long enough.

    Args:
        results: What each chunk is, as `lookup_each` says.
        window: Chunks that a run needs.
        first_window: Chunks that a run up to the very end needs.

    Returns:
        The end of the run; the length of the run at the beginning if none is long enough; None if
        the run has chunks that are being stored, so that it is to be asked for again.
    """
    end, needed = len(results), first_window
    while True:
        start = results.rfind(_MISS, 0, end) + 1
        if end - start >= needed:
            start = end - needed
            found = end
            break
        if not start:
            found = end
            break
        end, needed = start - 1, window
    return None if _PENDING in results[start:found] else found
