"""Which version of a file was opened: one that is replaced before a tensor is read would be mixed with the old one."""

import os
from dataclasses import dataclass
from pathlib import Path

from docs_sim.errors import InputError


@dataclass(frozen=True)
class FileState:
    """One version of a file, as its file system knows it."""

    device: int
    inode: int
    bytes: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileState":
        """The version that ``os.stat`` or ``os.fstat`` met."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def check(self, status: os.stat_result, path: Path) -> None:
        """Refuse any other version.

        Raises:
            InputError: if ``status``, of ``path``, is not of this version.
        """
        if FileState.of(status) != self:
            raise InputError(f"{path}: has changed since it was opened; start again")
