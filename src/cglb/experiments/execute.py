"""One run from its spec to its metrics. Runs resume; one process at a time works on each."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cglb.compute.parallel import one_blas_thread
from cglb.data import datasets
from cglb.data.datasets import Split
from cglb.experiments import machine, score
from cglb.experiments.kinds import KINDS, Method
from cglb.experiments.runs import Run, cg_steps, is_complete
from cglb.experiments.spec import GAIN_STEPS, Budget, Spec
from cglb.kernels import Matern32
from cglb.methods import Exact
from cglb.methods.stages import EXACT_ROWS, Stage, progressive
from cglb.model import GP
from cglb.training.history import Fit
from cglb.training.options import PARTS
from cglb.training.trainer import train

__all__ = ["Options", "execute", "load", "work"]

# a joint fit remembers 50 pairs of vectors as large as Z, so its checkpoints are large
CHECKPOINT_SECONDS = {False: 30.0, True: 300.0}
# nats that five steps of an exact fit of many rows must gain
EXACT_GAIN = 0.5
# inducing points of the chain that prepares an exact fit of many rows
CHAIN_POINTS = 512
# up to here LAPACK's threads gain nothing, and on a busy machine they wait for each other
FEW_ROWS = 2048


@dataclass(frozen=True)
class Options:
    """Options of a run that do not change the path of its training.

    Attributes:
        budget: where training stops.
        evaluate_every: steps between scores on the test part (0: only at the end). The training time
            does not include them.
        exact_every: steps between exact log marginal likelihoods by Cholesky (0: only at the end),
            computed together with test scores.
        cholesky: whether the final metrics include the exact ones.
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
    """Execute every run that is not complete and that no other process is working on.

    If a run fails, the store records the error and the next run starts.

    Args:
        runs: what to execute, in this order.
        options: the same for all runs.
        go_on: asked before each run; False stops the loop.
    """
    for run in runs:
        if not go_on():
            return
        try:
            execute(run, options)
        except Exception as error:
            run.fail(f"{type(error).__name__}: {error}", traceback.format_exc())


def execute(run: Run, options: Options) -> dict[str, Any] | None:
    """The metrics of a run, from the store if it is complete; otherwise the run is resumed or started.

    Returns:
        The metrics, or None if another process is working on the run.
    """
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
    with one_blas_thread() if len(split.y_train) <= FEW_ROWS else nullcontext():
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
        "extra_steps": run.extra_steps(),
        "stop": fit.stop.value,
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


def _learn(run: Run, split: Split, options: Options, callback: Callable[..., bool]) -> Fit:
    """Train from the paper's starting point: all hyperparameters 1, mean 0."""
    spec, method = run.spec, run.spec.method
    return train(
        GP(Matern32(np.ones(split.X_train.shape[1]))),
        split.X_train,
        split.y_train,
        method.as_trained(spec.optimize_inducing),
        stages=_stages(method, len(split.y_train)),
        callback=callback,
        checkpoint=run.checkpoint,
        checkpoint_seconds=CHECKPOINT_SECONDS[spec.optimize_inducing],
        num_inducing=method.num_inducing or CHAIN_POINTS,
        enough=0.0,
        optimize_inducing=spec.optimize_inducing,
        steps_per_round=spec.steps_per_round,
        max_steps=options.budget.max_steps,
        max_seconds=options.budget.max_seconds,
        floor=method.noise_floor,
        seed=spec.split,
        **KINDS[method.kind].settings,
    )


def _stages(method: Method, n: int) -> tuple[Stage, ...] | None:
    """Exact training on many rows begins where the chain ends, since each of its steps takes n³ flops;
    otherwise None, for the stages of the schedule."""
    if not isinstance(method.trained, Exact) or n <= EXACT_ROWS:
        return None
    before = progressive(KINDS["chain"].method, n, PARTS, Exact)
    return (*before, Stage(method.trained, inherits=True, gain=EXACT_GAIN))


def _on_step(run: Run, split: Split, options: Options) -> Callable[..., bool]:
    """The callback for each step; its time does not count as training time."""

    def on_step(row: Mapping[str, Any], current: Callable[[], Fit]) -> bool:
        run.append("history", row)
        exact = options.cholesky and _due(row["step"], options.exact_every)
        if exact or _due(row["step"], options.evaluate_every):
            found = score.at_interval(run.spec.method, current(), split, exact)
            run.append("scores", _score_row(row, found))
        return _gained_little(run, options.budget.gain, len(split.y_train))

    return on_step


def _gained_little(run: Run, gain: float, n: int) -> bool:
    """Whether the last steps on all n rows gained fewer nats than they must."""
    if gain == 0.0:
        return False
    bounds = [row["bound"] for row in run.recent() if row["rows"] == n]
    return len(bounds) > GAIN_STEPS and bounds[-1] - bounds[-1 - GAIN_STEPS] < gain


def _due(step: int, every: int) -> bool:
    """Whether a score is due: every `every` steps, and at the first one, where curves start."""
    return every > 0 and (step == 1 or step % every == 0)


def _score_row(row: Mapping[str, Any], scores: dict[str, Any]) -> dict[str, Any]:
    names = ("rmse", "nlpd", "coverage", "exact_lml")
    return {
        **{name: row[name] for name in ("step", "seconds", "bound")},
        **{name: scores[name] for name in names},
    }
