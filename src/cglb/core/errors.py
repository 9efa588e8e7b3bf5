"""Errors that callers may want to distinguish."""

__all__ = ["DatasetError", "DistributedError", "NystromError", "StoreError", "TableError"]


class DatasetError(RuntimeError):
    """A known data set could not be found, downloaded or verified; the message says what to do."""


class DistributedError(RuntimeError):
    """The processes of a run do not come together, differ, or have lost one; the message says which."""


class NystromError(ValueError):
    """Kuu has no Cholesky factor, even with the largest jitter."""


class StoreError(ValueError):
    """A file does not have the expected content, or a value cannot be saved."""


class TableError(ValueError):
    """A table cannot be used as it is; the message names the column, what was found and what to do."""
