"""The checkpoint file of a fit."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cglb.compute import processes
from cglb.compute.parallel import cores
from cglb.core.errors import StoreError
from cglb.io import tensorfile

__all__ = ["Checkpoint", "Snapshot"]

KIND, VERSION = "checkpoint", 6
Snapshot = tuple[dict[str, Any], dict[str, np.ndarray]]


class Checkpoint:
    """Loads and saves snapshots; does nothing without a path.

    Args:
        path: the file, or None.
        every: seconds between two saves at least.
        fingerprint: identifies data and settings. A file of another fit is an error, not a silent
            restart.
    """

    def __init__(self, path: str | Path | None, every: float, fingerprint: str):
        self.path = None if path is None else Path(path)
        self.every = every
        self.fingerprint = fingerprint
        self._saved_at = -float(
            "inf"
        )  # the first step is saved, so that an interrupted fit leaves a file

    def load(self) -> Snapshot | None:
        """The last snapshot, or None if there is none yet.

        Of several processes the first one reads the file for all.
        """
        if self.path is None:
            return None
        if processes.count() > 1:
            return self._from_first()
        if not self.path.exists():
            return None
        return self._checked(*tensorfile.read(self.path, KIND, VERSION))

    def _from_first(self) -> Snapshot | None:
        assert self.path is not None
        here = processes.is_first() and self.path.exists()
        content = processes.from_first(self.path.read_bytes() if here else None)
        if content is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, self.path.name)
            copy.write_bytes(content)
            return self._checked(*tensorfile.read(copy, KIND, VERSION))

    def _checked(self, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Snapshot:
        if document.pop("fingerprint", None) != self.fingerprint:
            raise StoreError(
                f"{self.path} is the checkpoint of another fit: its data, start or settings differ. "
                "Give another path, or delete it to start again."
            )
        saved_on, here = document.pop("cores", None), _lanes()
        if saved_on is not None and saved_on != here:
            warnings.warn(
                f"{self.path} was written on {saved_on} cores, and this run has {here}. The fit "
                "resumes, but sums are split among the cores: its result will differ by rounding from "
                "that of a fit that was not interrupted.",
                stacklevel=2,
            )
        return document, arrays

    def save_if_due(self, snapshot: Callable[[], Snapshot]) -> None:
        """Save if the last save was more than `every` seconds ago."""
        if self.path is not None and time.monotonic() - self._saved_at >= self.every:
            self.save(snapshot)

    def save(self, snapshot: Callable[[], Snapshot]) -> None:
        """Save now. Where that is impossible the last file stays, and training is worth more than it."""
        if self.path is None or not processes.is_first():
            return
        document, arrays = snapshot()
        document = {**document, "fingerprint": self.fingerprint, "cores": _lanes()}
        try:
            tensorfile.write(self.path, KIND, VERSION, document, arrays)
        except OSError as error:
            warnings.warn(
                f"{self.path} could not be written ({error.strerror}). Training goes on, and the last "
                "checkpoint stays.",
                stacklevel=2,
            )
        self._saved_at = time.monotonic()


def _lanes() -> int:
    """The cores that sums are split among: those of all processes."""
    return len(cores()) * processes.count()
