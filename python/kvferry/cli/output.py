"""Files that a command writes at its end, checked before it starts."""

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["OutputFile"]


class OutputFile:
    """A file that is replaced as a whole on success and left as it was otherwise.

    Entering the context finds out whether the file can be written, so that no work is lost to a
    misspelt path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._draft: Path | None = None

    def __enter__(self) -> Self:
        """Creates a draft beside the file.

        Raises:
            OSError: The file cannot be written.
        """
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path}: is a directory")
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise PermissionError(f"{self.path}: is not writable")
        if self.path.exists() and not self.path.is_file():
            return self  # A device or a pipe is written to, never replaced.
        try:
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        except OSError as error:
            raise type(error)(f"{self.path}: cannot be written: {error.strerror}") from error
        os.close(handle)
        self._draft = Path(name)
        return self

    def write(self, data: bytes) -> None:
        """Puts `data` in place."""
        if self._draft is None:
            self.path.write_bytes(data)
            return
        self._draft.write_bytes(data)
        self._draft.chmod(_mode(self.path))
        # Through a link, the file that it names is replaced.
        self._draft.replace(self.path.resolve())
        self._draft = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)


def _mode(path: Path) -> int:
    """The mode of the file, or the one that a fresh file gets."""
    if path.exists():
        return path.stat().st_mode & 0o7777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
