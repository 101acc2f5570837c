"""What a user can set for the host tier of a vLLM engine, and what it comes to.

The settings are the entries of vLLM's `kv_connector_extra_config`. They are read once, into a
`Settings`; with the engine's sizes it becomes a `HostTier`, the same in the scheduler and in every
worker, since both compute it from the same numbers.

Nothing here imports vLLM.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

from kvferry._core import KvferryError, OffloadingManager
from kvferry.integrations.vllm.memory import MemoryLimit, memory_limit

__all__ = ["ConfigError", "HostTier", "Settings", "human_bytes"]

SLOT_ALIGNMENT = 4096
"""Bytes that a rank's part of a chunk is rounded up to: a page."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {f"{unit}iB": 1 << 10 * (power + 1) for power, unit in enumerate("KMGT")}

# What vLLM itself reads from the same mapping, and has checked by then.
_VLLMS_OWN = frozenset({"spec_name", "spec_module_path", "self_describing_kv_events"})
# Settings that vLLM has under another name.
_ALIASES = {"cpu_bytes_to_use": "size", "eviction_policy": "policy"}
# Settings of vLLM's own host tier that this one has not: why, or what instead.
_REFUSED = {
    "cache_policy_module_path": "kvferry's policies are native: set `policy` to one of them",
    "canonical_layout": "chunks are kept as each rank has them: leave it out",
    "secondary_tiers": "there is no tier below the host tier: leave it out",
    "num_cpu_blocks": "set `size` to the bytes of the host tier",
}

_T = TypeVar("_T")


class ConfigError(KvferryError, ValueError):
    """A setting cannot be used; the message names it."""


def _setting(
    default: _T, read: Callable[[object], object], doc: str, shown: str | None = None
) -> _T:
    metadata = {"read": read, "doc": doc, "shown": repr(default) if shown is None else shown}
    return field(default=default, metadata=metadata)


def parse_size(value: object) -> "int | Share":
    """Bytes, or a share of the machine's memory.

    Raises:
        ValueError: The value is neither.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        size = int(value)
    elif isinstance(value, str) and (share := re.fullmatch(r"\s*([\d.]+)\s*%\s*", value)):
        percent = float(share[1])
        if not 0 < percent <= 100:
            raise ValueError("a share is more than 0 % and at most 100 %")
        return Share(percent)
    elif isinstance(value, str) and (
        amount := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    ):
        units = {unit.lower(): factor for unit, factor in _UNITS.items()}
        if amount[2].lower() not in units:
            raise ValueError(f"unknown unit {amount[2]!r}: use KiB, MiB, GiB or TiB")
        size = int(float(amount[1]) * units[amount[2].lower()])
    else:
        raise ValueError('expected a number of bytes, or text such as "64GiB" or "50%"')
    if size <= 0:
        raise ValueError("the host tier needs more than nothing")
    return size


def _integer(least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        # The command line hands numbers over as text.
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("expected a whole number")  # noqa: TRY004 - as any other bad value
        if value < least:
            raise ValueError(f"must be at least {least}")
        return value

    return read


def _flag(value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("expected true or false")  # noqa: TRY004 - as any other bad value
    return value


def _seconds(value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type] # whatever is no number raises
    except (TypeError, ValueError):
        raise ValueError("expected a number of seconds") from None
    if not 0 < seconds < float("inf"):
        raise ValueError("must be more than 0 seconds")
    return seconds


def _policy(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected the name of a policy")  # noqa: TRY004 - as any other bad value
    # The engine is asked, so that its list is the only one.
    try:
        OffloadingManager(1, policy=value.lower())
    except ValueError as error:
        raise ValueError(str(error).removeprefix("policy: ")) from None
    return value.lower()


def _huge_pages(value: object) -> "int | str":
    if isinstance(value, str) and value in {"off", "transparent"}:
        return value
    try:
        size = parse_size(value)
    except ValueError:
        size = 0
    if not isinstance(size, int) or size.bit_count() != 1:
        raise ValueError('expected "off", "transparent" or the size of a huge page, such as "2MiB"')
    return size


def _numa(value: object) -> "int | str":
    if isinstance(value, str) and value in {"auto", "off"}:
        return value
    try:
        return _integer(0)(value)
    except ValueError:
        raise ValueError('expected "auto", "off" or the number of a node') from None


@dataclass(frozen=True)
class Share:
    """A share of the memory that this process may use.

    Attributes:
        percent: More than 0, at most 100.
    """

    percent: float


@dataclass(frozen=True)
class Settings:
    """Everything a user can set.

    Each attribute is a key of `kv_connector_extra_config`. `cpu_bytes_to_use`, which vLLM's own
    flag `--kv-offloading-size` sets, and `eviction_policy` are taken for `size` and `policy`.
    """

    size: int | Share | None = _setting(  # noqa: RUF009 - it makes a field
        None,
        parse_size,
        'bytes of the host tier, all ranks of an engine together: `"64GiB"`, a number, or a share '
        "such as `\"50%\"` of the machine's memory or of the control group's limit, whichever is "
        "smaller",
        "required",
    )
    policy: str = _setting("lru", _policy, "which chunks leave a full tier")
    blocks_per_chunk: int | None = _setting(
        None, _integer(1), "blocks of a chunk, the unit of offloading", "1"
    )
    block_size: int | None = _setting(
        None,
        _integer(1),
        "tokens of a chunk, instead of `blocks_per_chunk`: a multiple of the engine's block size",
        "one block",
    )
    store_threshold: int = _setting(
        1, _integer(0), "a chunk is stored once it was offered this many times"
    )
    max_tracker_size: int = _setting(
        64_000, _integer(0), "chunks whose offers are counted for `store_threshold`"
    )
    offload_prompt_only: bool = _setting(True, _flag, "leave out what a request generates", "true")
    threads: int | None = _setting(
        None, _integer(1), "threads that copy, in each worker", "by the number of processors"
    )
    huge_pages: int | str = _setting(
        "transparent",
        _huge_pages,
        "pages of the host tier: `off`, `transparent`, or the size of reserved ones",
        "`transparent`",
    )
    numa: int | str = _setting(
        "auto", _numa, "NUMA node of a rank's memory: `auto`, `off` or its number", "`auto`"
    )
    pending_deadline: float = _setting(
        60.0,
        _seconds,
        "seconds after which a chunk whose store has not ended is a miss",
        "60",
    )
    events: bool = _setting(True, _flag, "report KV events if the engine publishes them", "true")

    @classmethod
    def read(cls, extra_config: Mapping[str, object]) -> "Settings":
        """Reads the settings of an engine.

        Args:
            extra_config: vLLM's `kv_connector_extra_config`.

        Raises:
            ConfigError: A key is unknown, or its value cannot be used.
        """
        known = {entry.name: entry for entry in fields(cls)}
        values: dict[str, object] = {}
        for key, value in extra_config.items():
            if key in _VLLMS_OWN:
                continue
            if key in _REFUSED:
                # What switches something off that is off is no request for it.
                if value in (None, False, []):
                    continue
                raise ConfigError(f"{key}: not supported by kvferry: {_REFUSED[key]}")
            name = _ALIASES.get(key, key)
            if name not in known:
                raise ConfigError(_unknown(key, [*known, *_ALIASES]))
            if value is None:
                continue
            try:
                read = known[name].metadata["read"](value)
            except ValueError as error:
                raise ConfigError(f"{key}: {error}, got {value!r}") from None
            if values.get(name, read) != read:
                other = next(a for a in (name, *_ALIASES) if a != key and a in extra_config)
                raise ConfigError(f"{key}: differs from {other}, which is the same setting")
            values[name] = read
        settings = cls(**values)  # type: ignore[arg-type] # each was read by its own field
        if settings.blocks_per_chunk is not None and settings.block_size is not None:
            raise ConfigError("block_size: set either it or blocks_per_chunk")
        return settings

    def chunk_blocks(self, block_size: int) -> int:
        """Blocks of a chunk, for an engine with blocks of `block_size` tokens.

        Raises:
            ConfigError: `block_size` is not a multiple of the engine's.
        """
        if self.block_size is None:
            return self.blocks_per_chunk or 1
        blocks, rest = divmod(self.block_size, block_size)
        if rest or not blocks:
            below, above = max(1, blocks) * block_size, (blocks + 1) * block_size
            nearest = f"{above}" if above == below else f"{below} or {above}"
            raise ConfigError(
                f"block_size: {self.block_size} tokens are no multiple of the engine's block of "
                f"{block_size}: use {nearest}"
            )
        return blocks

    def host_tier(
        self, bytes_per_rank: int, ranks: int, limit: MemoryLimit | None = None
    ) -> "HostTier":
        """What the size comes to.

        Args:
            bytes_per_rank: Bytes of a chunk that one rank holds.
            ranks: How many ranks hold bytes of their own.
            limit: The memory there is; by default, that of this machine.

        Raises:
            ConfigError: There is no size, it is larger than the machine's memory, or too small
                for one chunk.
        """
        if self.size is None:
            raise ConfigError(
                'size: not set: use --kv-offloading-size, or "size": "64GiB" in '
                "kv_connector_extra_config"
            )
        if bytes_per_rank <= 0 or ranks <= 0:
            raise ConfigError("the engine has no KV cache to offload")
        limit = memory_limit() if limit is None else limit
        if isinstance(self.size, Share):
            size = int(limit.bytes * self.size.percent / 100)
        else:
            size = self.size
        aligned = -(-bytes_per_rank // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        per_chunk = aligned * ranks
        if size > limit.bytes:
            fits = limit.bytes // per_chunk * per_chunk
            raise ConfigError(
                f"size: {human_bytes(size)} are more than {limit.source}, "
                f"{human_bytes(limit.bytes)}: at most {human_bytes(fits)} fit"
            )
        chunks = size // per_chunk
        if not chunks:
            raise ConfigError(
                f"size: {human_bytes(size)} hold no chunk: one has {human_bytes(per_chunk)}"
            )
        return HostTier(chunks, aligned, ranks)


@dataclass(frozen=True)
class HostTier:
    """A host tier in numbers.

    Attributes:
        chunks: How many chunks it holds.
        bytes_per_rank: Bytes of a chunk in one rank's memory, padding included.
        ranks: How many ranks hold bytes of their own.
    """

    chunks: int
    bytes_per_rank: int
    ranks: int

    @property
    def bytes_per_chunk(self) -> int:
        """Bytes of a chunk in all ranks."""
        return self.bytes_per_rank * self.ranks

    @property
    def bytes(self) -> int:
        """Bytes of the whole tier."""
        return self.bytes_per_chunk * self.chunks


def rows() -> list[tuple[str, str, str]]:
    """Each setting: its key, its default and what it means."""
    return [(e.name, e.metadata["shown"].strip("'"), e.metadata["doc"]) for e in fields(Settings)]


def human_bytes(size: int) -> str:
    """A number of bytes for people, rounded down to two decimals, exact where that is exact."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _UNITS[unit]:
            hundredths = size * 100 // _UNITS[unit]
            return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + " " + unit
    return f"{size} bytes"


def _unknown(key: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f": did you mean {nearest[0]}?" if nearest else f": known are {', '.join(sorted(known))}"
    return f"{key}: unknown setting{hint}"
