"""Training: maximise a bound by L-BFGS-B, in rounds, with history and checkpoints.

A tight bound (`logdet="chain"`) is reached by continuation: from a cold start it can fall into an
optimum with collapsed noise, so training begins with the paper's bound and tightens it in stages. A
stage ends when its bound has converged, or when its share of the budget is spent.

On many rows the first steps, which are the dearest (CG starts from nothing, far from the solution), are
taken on a random part of them.

The fast way (default) leaves the inducing points out of the optimisation: each round reselects Z
greedily at the current hyperparameters and then takes some L-BFGS steps in the d + 3 hyperparameters,
until these gain next to nothing: then new inducing points gain more.
The paper's way (`optimize_inducing=True`) optimises hyperparameters and Z together in one long round.

CG's v moves on only when the optimiser accepts a step, so within a line search the objective is one
fixed function. A checkpoint stores the values and gradients seen in the current round: a restarted fit
feeds them to SciPy again, which is deterministic, and so arrives in the very state it was killed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jaxtyping import Array, Float

from cglb.checkpoint import Checkpoint
from cglb.checks import boundary
from cglb.clock import Clock
from cglb.constraints import DEFAULT_FLOOR, Parameters
from cglb.fitting import Callback, Fit, drive
from cglb.model import GP
from cglb.objective import Objective
from cglb.problem import Problem
from cglb.rounds import State
from cglb.schedule import Schedule, check_schedule, default_schedule

__all__ = ["Fit", "train"]

STEPS_PER_ROUND = 50
# rows of the part that training begins on, and the steps and the share of the time it gets at most
SUBSET, SUBSET_STEPS, SUBSET_SHARE = 10_000, 20, 0.25


@boundary
def train(
    gp: GP,
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
    objective: Objective = Objective(),  # noqa: B008 (frozen)
    *,
    Z: Float[Array, "m d"] | None = None,
    num_inducing: int = 512,
    optimize_inducing: bool = False,
    max_steps: int = 100,
    steps_per_round: int = STEPS_PER_ROUND,
    schedule: Schedule | None = None,
    subset: int | None = SUBSET,
    floor: float | Mapping[str, float] = DEFAULT_FLOOR,
    fixed: tuple[str, ...] = (),
    seed: int = 0,
    callback: Callback | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    max_seconds: float | None = None,
) -> Fit:
    """Maximise `objective` over the hyperparameters of `gp`, starting from its values.

    Z:                 inducing points to start from; by default `num_inducing` greedy ones.
    optimize_inducing: optimise Z by gradient too (the paper's way).
    max_steps:         accepted L-BFGS steps in all; at most `steps_per_round` between two selections
                       of Z, and fewer where they have all but stopped raising the bound.
    schedule:          stages as (log-det bound, share), "sgpr" for a stage without CG; by default
                       `default_schedule`. A stage ends when it has converged, or at its share of
                       `max_steps` or of `max_seconds`.
    subset:            where there are more than twice as many rows, up to 20 steps on this many of them,
                       drawn at random, come before (and beside) the `max_steps` on all rows; `rows` in
                       the history tells them apart. None: no such steps; nor are there any for SGPR's
                       bound, with `optimize_inducing` or where Z has more points than that.
    floor, fixed:      as in `Parameters`.
    callback:          called after each step with the history row and a function that gives the model
                       so far; its time does not count; returning True stops.
    checkpoint:        a file. If it exists, training goes on from it, to the result that an
                       uninterrupted run would have had; it is written at most every
                       `checkpoint_seconds`, and at the end. A fit that ended at its step or time
                       limit goes on if it is given more; one that converged or was stopped by its
                       callback comes back as it is.
    """
    sizes = {"max_steps": max_steps, "steps_per_round": steps_per_round, "subset": subset}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, found {value}.")
    schedule = default_schedule(objective) if schedule is None else check_schedule(schedule)
    parameters = Parameters(gp, floor, fixed)
    state = State(
        Problem(X, y, objective, schedule, parameters, optimize_inducing, num_inducing, seed),
        Clock(max_seconds),
    )
    # with one stage max_steps only cuts the path off; with several it decides where they change
    path: tuple[Any, ...] = (steps_per_round, max_steps if len(schedule) > 1 else None)
    part = state.problem.part(subset, 0 if Z is None else len(Z))
    if part is not None:
        path += (subset, SUBSET_STEPS)
    store = Checkpoint(checkpoint, checkpoint_seconds, state.problem.fingerprint(gp, Z, path))
    saved = store.load()
    if saved is None and part is not None:
        first = train(
            gp,
            X[part],
            y[part],
            objective,
            Z=Z,
            num_inducing=num_inducing,
            max_steps=SUBSET_STEPS,
            steps_per_round=steps_per_round,
            schedule=((state.problem.first_bound, 1.0),),
            subset=None,
            floor=floor,
            fixed=fixed,
            seed=seed,
            callback=None if callback is None else _without_v(callback),
            progress=progress,
            checkpoint=None if checkpoint is None else subset_checkpoint(checkpoint),
            checkpoint_seconds=checkpoint_seconds,
            max_seconds=None if max_seconds is None else SUBSET_SHARE * max_seconds,
        )
        if first.stop == "callback":
            return replace(first, v=None)
        gp = first.gp
        state.follow(first)
    state.begin(gp, Z, saved)
    if part is not None and checkpoint is not None:
        if saved is None:
            store.save(state.snapshot)
        subset_checkpoint(checkpoint).unlink(missing_ok=True)
    max_steps += sum(row["rows"] < X.shape[0] for row in state.history)
    return drive(
        state,
        partial(state.run_round, max_steps, steps_per_round),
        store,
        max_steps=max_steps,
        progress=progress,
        callback=callback,
    )


def subset_checkpoint(checkpoint: str | Path) -> Path:
    """The checkpoint of the steps on a part of the rows, beside that of the fit; gone when those are."""
    return Path(f"{checkpoint}.subset")


def _without_v(callback: Callback) -> Callback:
    """For a model in training on a part of the rows: its v is of no use with all of them."""
    return lambda row, fit: callback(row, lambda: replace(fit(), v=None))
