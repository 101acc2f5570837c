"""How much memory this process may use: the machine's, or less where a control group says so."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryLimit", "memory_limit"]


@dataclass(frozen=True)
class MemoryLimit:
    """The most memory that this process can have.

    Attributes:
        bytes: The limit.
        source: What sets it, for messages.
    """

    bytes: int
    source: str


def memory_limit(root: Path = Path("/")) -> MemoryLimit:
    """The smaller of the machine's memory and the limits of the control groups of this process.

    Args:
        root: Where `proc` and `sys` are.

    Raises:
        OSError: The machine does not tell how much memory it has.
    """
    limit = MemoryLimit(_machine_bytes(root), "the machine's memory")
    for folder in _control_groups(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            # `max` is version 2's word for no limit; version 1 has a number near 2^63.
            if text is not None and text.isdecimal() and int(text) < limit.bytes:
                limit = MemoryLimit(int(text), f"the control group's {name}")
    return limit


def _machine_bytes(root: Path) -> int:
    path = root / "proc" / "meminfo"
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    raise OSError(f"{path}: no MemTotal")


def _control_groups(root: Path) -> list[Path]:
    """The folders of this process's control groups and of all that enclose them."""
    folders = []
    mounted = root / "sys" / "fs" / "cgroup"
    for line in (_read(root / "proc" / "self" / "cgroup") or "").splitlines():
        # A line is number:controllers:path; version 2 has one line, without controllers.
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = mounted / "memory" if controllers else mounted
        folder = top / path.lstrip("/")
        while folder != top and top in folder.parents:
            folders.append(folder)
            folder = folder.parent
        # In a container the path may be the host's: its own group is then what is mounted.
        folders.append(top)
    return folders


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
