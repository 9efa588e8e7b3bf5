"""One run from its spec to its metrics: taken up where it was left, done by one process at a time."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from cglb import datasets
from cglb.datasets import Split
from cglb.iterative_training import train_iterative
from cglb.kernels import Matern32
from cglb.model import GP
from cglb.objective import Objective
from cglb.paper import machine, score
from cglb.paper.runs import Run, cg_steps, is_complete
from cglb.paper.spec import Budget, Method, Spec
from cglb.train import Fit, train

__all__ = ["Options", "execute", "load", "work"]

CG_TOLERANCE = 1.0
# a joint fit logs a gradient as large as Z at every evaluation, so its checkpoints are large
CHECKPOINT_SECONDS = {False: 30.0, True: 300.0}
# up to here LAPACK's threads gain nothing, and on a busy machine they wait for each other
FEW_ROWS = 2048


@dataclass(frozen=True)
class Options:
    """What is asked of a run beside what it is. None of it changes the path of the training.

    evaluate_every: steps between scores on the test part (0: only at the end), outside the clock.
    exact_every:    steps between exact log marginal likelihoods by Cholesky (0: only at the end), made
                    where test scores are made too.
    cholesky:       whether the final metrics hold the exact ones.
    """

    budget: Budget = field(default_factory=Budget)
    evaluate_every: int = 10
    exact_every: int = 25
    cholesky: bool = True

    def __post_init__(self) -> None:
        for name in ("evaluate_every", "exact_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, found {getattr(self, name)}.")


def work(runs: list[Run], options: Options, go_on: Callable[[], bool] = lambda: True) -> None:
    """Every run that is neither complete nor in other hands. One that fails says so in the store and
    does not keep the others from being made."""
    for run in runs:
        if not go_on():
            return
        try:
            execute(run, options)
        except Exception as error:
            run.fail(f"{type(error).__name__}: {error}", traceback.format_exc())


def execute(run: Run, options: Options) -> dict[str, Any] | None:
    """The metrics of a run: from the store if they are there, else by doing what is left of it. None
    where another process is at it."""
    if is_complete(run.metrics(), options.budget, options.cholesky):
        return run.metrics()
    with run.locked() as mine:
        if not mine:
            return None
        if is_complete(run.metrics(), options.budget, options.cholesky):
            return run.metrics()  # another process has just finished it
        run.register(options.budget)
        metrics = _learn_and_score(run, options)
        run.finish(metrics)
        return metrics


def load(spec: Spec) -> Split:
    """The split, standardised by its training part."""
    data = datasets.load(spec.data, progress=False)
    return data.split(spec.fraction, seed=spec.split).standardised()


def _learn_and_score(run: Run, options: Options) -> dict[str, Any]:
    split = load(run.spec)
    with threadpool_limits(1, user_api="blas") if len(split.y_train) <= FEW_ROWS else nullcontext():
        return _learn_and_score_on(run, split, options)


def _learn_and_score_on(run: Run, split: Split, options: Options) -> dict[str, Any]:
    spec = run.spec
    machine.reset_peak_memory()
    run.rewind()
    run.mark("training")
    fit = _learn(run, split, options, _on_step(run, split, options))
    if not fit.history:
        raise ValueError(f"Training could not take one step: {fit.message}")
    run.mark("scoring")
    started = time.perf_counter()
    scores = score.final(spec.method, fit, split, options.cholesky)
    last = fit.history[-1]
    exact = scores["cholesky"] or {}
    run.append("scores", _score_row(last, {**scores, "exact_lml": exact.get("lml")}))
    return {
        "n": len(split.y_train),
        "n_test": len(split.y_test),
        "d": split.X_train.shape[1],
        "m": None if fit.Z is None else len(fit.Z),
        "steps": last["step"],
        "steps_on_part": run.steps_on_part(),
        "stop": fit.stop,
        "message": fit.message,
        "bound": fit.bound,
        "logdet_bound": last.get("logdet_bound"),
        **scores,
        "seconds": fit.seconds,
        "scoring_seconds": time.perf_counter() - started,
        "evaluations": fit.evaluations,
        "products": fit.products,
        "cg_steps": sum(sum(cg_steps(row)) for row in fit.history),
        "peak_memory_gb": round(machine.peak_memory_gb(), 3),
        "parameters": last["parameters"],
        "seed": spec.split,
        "versions": machine.versions(),
        "machine": machine.summary(),
    }


def _learn(run: Run, split: Split, options: Options, callback: Callable[..., None]) -> Fit:
    """The paper's start (everything 1, mean 0) and the paper's objective, or the one beyond it."""
    spec, method = run.spec, run.spec.method
    shared = {
        "max_steps": options.budget.max_steps,
        "max_seconds": options.budget.max_seconds,
        "floor": method.noise_floor,
        "seed": spec.split,
        "callback": callback,
        "checkpoint": run.checkpoint,
        "checkpoint_seconds": CHECKPOINT_SECONDS[spec.optimize_inducing],
    }
    data = (GP(Matern32(np.ones(split.X_train.shape[1]))), split.X_train, split.y_train)
    if method.kind == "iterative":
        return train_iterative(*data, learning_rate=method.learning_rate, **shared)
    return train(
        *data,
        _objective(method),
        num_inducing=method.num_inducing or 1,
        optimize_inducing=spec.optimize_inducing,
        steps_per_round=spec.steps_per_round,
        **shared,
    )


def _objective(method: Method) -> Objective:
    return {
        "exact": Objective("exact"),
        "sgpr": Objective("sgpr", "trace"),
        "cglb": Objective("cglb", "amgm", CG_TOLERANCE),
        "chain": Objective("cglb", "chain", CG_TOLERANCE),
    }[method.kind]


def _on_step(run: Run, split: Split, options: Options) -> Callable[..., None]:
    """Called after each step, with training's clock stopped."""

    def on_step(row: dict[str, Any], current: Callable[[], Fit]) -> None:
        run.append("history", row)
        exact = options.cholesky and _due(row["step"], options.exact_every)
        if exact or _due(row["step"], options.evaluate_every):
            found = score.at_interval(run.spec.method, current(), split, exact)
            run.append("scores", _score_row(row, found))

    return on_step


def _due(step: int, every: int) -> bool:
    """At the first step too: a curve needs its beginning."""
    return every > 0 and (step == 1 or step % every == 0)


def _score_row(row: dict[str, Any], scores: dict[str, Any]) -> dict[str, Any]:
    names = ("rmse", "nlpd", "coverage", "exact_lml")
    return {
        **{name: row[name] for name in ("step", "seconds", "bound")},
        **{name: scores[name] for name in names},
    }
