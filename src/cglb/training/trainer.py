"""Training: maximise a bound in stages, with history and checkpoints.

By default inducing points are left out of the optimisation: each round selects them greedily at the
current hyperparameters and then takes some steps in the d + 3 hyperparameters, until these gain next to
nothing; then new inducing points gain more. The paper's way (`optimize_inducing=True`) optimises
hyperparameters and inducing points together.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from cglb import methods
from cglb.compute import processes
from cglb.core.errors import StoreError
from cglb.core.validation import boundary
from cglb.io.lock import exclusive
from cglb.linalg.row_noise import EQUAL, RowNoise
from cglb.methods.base import Method
from cglb.methods.stages import Stage
from cglb.model import GP
from cglb.training.checkpoint import Checkpoint, Snapshot
from cglb.training.clock import Clock
from cglb.training.free import TRANSFORMS, Parameters
from cglb.training.history import Callback, Fit, HistoryRow
from cglb.training.options import Options, check_stages, default_stages
from cglb.training.problem import Problem
from cglb.training.progress import reporter
from cglb.training.snapshot import restore, snapshot
from cglb.training.state import State

__all__ = ["train"]


@boundary
def train(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    method: str | Method = methods.AUTO,
    *,
    Z: Float[Array, "m d"] | None = None,
    row_noise: RowNoise = EQUAL,
    stages: tuple[Stage, ...] | None = None,
    callback: Callback | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Fit:
    """Maximise a method's bound over the hyperparameters of `gp`, starting from its values.

    Args:
        gp: the model to start from.
        X: training inputs.
        y: training targets.
        method: a method or its name; "auto" is exact for few rows and CGLB with the tightest bound that
            pays for more.
        Z: inducing points to start from; by default greedy ones.
        row_noise: weights and known noise variances of the rows, if they differ.
        stages: of training; by default the method's own. A stage ends when it has converged, after its
            own number of steps, or at its share of `max_steps` or of `max_seconds`.
        callback: called after each step with the history row and a function that gives the model so
            far. Its time does not count; returning True stops.
        progress: show a progress bar.
        checkpoint: a file. If it exists, training resumes from it, to the result that an uninterrupted
            run would have had. It is written while training runs and at the end. A fit that ended at
            its step or time limit goes on if it is given more; one that ended otherwise comes back as
            it is.
        **options: the fields of `Options`: num_inducing, optimize_inducing, max_steps, max_seconds,
            steps_per_round, schedule, parts, starts, subset, floor, fixed, transform, seed,
            checkpoint_seconds.

    Returns:
        The trained model. Its arrays are NumPy's.

    Raises:
        ValueError: if the bound is not finite at the start, or if an option makes no sense.
        StoreError: if `checkpoint` is the file of another fit, damaged, or in use by another one.
    """
    chosen, asked = methods.choose(method, X.shape[0]).method, Options(**options)
    if stages is None:
        stages = default_stages(chosen, X.shape[0], 0 if Z is None else len(Z), asked)
    elif asked.optimize_inducing:
        stages = tuple(replace(one, joint=one.method.needs_points) for one in stages)
    floor = chosen.noise_floor if asked.floor is None else asked.floor
    parameters = Parameters(gp, floor, asked.fixed, TRANSFORMS[asked.transform])
    row_noise.check(X.shape[0])
    problem = Problem(X, y, row_noise, Z, check_stages(stages), parameters, asked)
    store = Checkpoint(checkpoint, asked.checkpoint_seconds, problem.fingerprint(gp))
    state = State(problem, Clock(asked.max_seconds), problem.flatten(0, gp))
    limits = f"max_steps={asked.max_steps}, max_seconds={asked.max_seconds}"
    processes.check_same("data and settings of a fit", f"{limits}, {store.fingerprint}")
    advice = f"{store.path} has the last steps: start again to resume. " if store.path else ""
    with exclusive(store.path if processes.is_first() else None), processes.guarded(advice):
        if (saved := store.load()) is not None:
            _restore(state, saved, store)
        return _run(state, store, callback, progress)


def _restore(state: State, saved: Snapshot, store: Checkpoint) -> None:
    """Go on from a snapshot; whatever its file may hold, the error is one."""
    free = saved[1].get("free")
    try:
        if free is None or free.shape != state.free.shape or not np.isfinite(free).all():
            raise ValueError("the parameters are missing, not finite or of another number")
        restore(state, saved)
    except Exception as error:
        raise StoreError(
            f"{store.path} does not hold the state of a fit ({type(error).__name__}: {error}). "
            "Delete it to start again."
        ) from error


def _run(state: State, store: Checkpoint, callback: Callback | None, progress: bool) -> Fit:
    """Advance until the end; after each step show it, save it and ask the callback."""
    with reporter(progress and processes.is_first(), state.problem.options.max_steps) as report:

        def on_step(row: HistoryRow) -> bool:
            report(row, state.extra)
            store.save_if_due(partial(snapshot, state))
            if callback is None:
                return False
            with state.clock.paused():
                return processes.agreed(bool(callback(row, state.fit)))

        while state.ending is None:
            with state.clock.running():
                state.advance(on_step)
    store.save(partial(snapshot, state))
    return state.fit()
