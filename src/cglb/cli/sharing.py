"""`--distributed`: joining a run of several processes, and its tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
import typer

from cglb.core.errors import DistributedError
from cglb.data.table import Column, Kind, Table

__all__ = ["Coordinator", "Distributed", "ProcessId", "Processes", "gathered", "joined"]

Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="Share the work with the other processes of a run, which start the same command.",
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(help="Address and port of process 0, unless Slurm, MPI or Kubernetes say it."),
]
Processes = Annotated[int | None, typer.Option(help="How many processes there are.")]
ProcessId = Annotated[int | None, typer.Option(help="Which one this is, from 0.")]

LOST = 3  # the exit code of a run that has lost a process


@contextmanager
def joined(
    wanted: bool, coordinator: str | None, count: int | None, process_id: int | None
) -> Iterator[tuple[int, int]]:
    """The number of this process and how many there are, while the block runs."""
    if not wanted:
        if coordinator is not None or count is not None or process_id is not None:
            raise ValueError("--coordinator, --processes and --process-id go with --distributed.")
        yield 0, 1
        return
    from cglb import distributed
    from cglb.compute import processes

    try:
        distributed.initialize(coordinator, count, process_id)
        yield processes.number(), processes.count()
    except DistributedError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        # JAX would wait for the others, who may be gone
        os._exit(LOST)


def gathered(table: Table) -> Table:
    """All rows, from the rows that each process has read."""
    from cglb.compute import processes

    kinds = [(column.name, str(column.kind)) for column in table.columns]
    processes.check_same("columns", json.dumps(kinds))
    return Table(tuple(Column(c.name, c.kind, _all_values(c)) for c in table.columns))


def _all_values(column: Column) -> np.ndarray:
    from cglb.compute.processes import gathered_rows

    if column.kind is not Kind.TEXT:
        return gathered_rows(column.values)
    # one JSON list after the other
    texts = json.dumps(column.values.tolist()).encode() + b"\n"
    joined = gathered_rows(np.frombuffer(texts, np.uint8)).tobytes()
    entries: list[Any] = [entry for line in joined.splitlines() for entry in json.loads(line)]
    found = np.empty(len(entries), dtype=object)
    found[:] = entries
    return found
