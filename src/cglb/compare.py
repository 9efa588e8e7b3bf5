"""Model comparison with proof: rank models by intervals that contain their evidence.

Where two intervals do not overlap, the ranking of those two models is proven, not estimated. Intervals
are refined only where that could decide something.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cglb.certificate import Certificate, Evidence
from cglb.model import GP
from cglb.precision import float64

__all__ = ["Comparison", "Ranked", "compare"]


@dataclass(frozen=True)
class Ranked:
    """A model's place: its evidence, and the names of the models that it provably beats."""

    name: str
    evidence: Evidence
    beats: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Models from best to worst, by the middle of their intervals.

    proven: every pair (better, worse) whose intervals do not overlap.
    """

    ranking: tuple[Ranked, ...]
    message: str

    @property
    def proven(self) -> tuple[tuple[str, str], ...]:
        return tuple((model.name, other) for model in self.ranking for other in model.beats)

    @property
    def best(self) -> str | None:
        """The model that provably beats all others, or None."""
        first = self.ranking[0]
        return first.name if len(first.beats) == len(self.ranking) - 1 else None

    def __str__(self) -> str:
        width = max(len(model.name) for model in self.ranking)
        lines = []
        for place, model in enumerate(self.ranking):
            below = self.ranking[place + 1 :]
            verdict = ""
            if below:
                certain = below[0].name in model.beats
                verdict = "proven better than the next" if certain else "not proven against the next"
            low, high = model.evidence.lower, model.evidence.upper
            lines.append(f"{place + 1}. {model.name:{width}s}  [{low:.2f}, {high:.2f}]  {verdict}")
        return "\n".join(line.rstrip() for line in [*lines, self.message])


def compare(
    models: Mapping[str, Any] | Sequence[Any],
    X: Any,
    y: Any,
    *,
    max_seconds: float | None = None,
    memory_gb: float = 4.0,
) -> Comparison:
    """Rank models by log p(y) of the targets y at the inputs X, in the units of y.

    models: fitted `GPRegressor`s, or `GP`s (in the units of X and y), by name or in a sequence. Their
            hyperparameters are taken as they are.
    max_seconds, memory_gb: the budget for refinement; without max_seconds it goes on until all rankings
            are proven or the memory is spent.
    """
    named = dict(models) if isinstance(models, Mapping) else _names(models)
    if len(named) < 2:
        raise ValueError(f"models must have at least two models, found {len(named)}.")
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if y.shape != (len(X),):
        raise ValueError(f"y must have one number a row of X ({len(X)}), found shape {y.shape}.")
    started = time.perf_counter()
    with float64():
        found = {name: _certificate(name, model, X, y, memory_gb) for name, model in named.items()}
        for certificate, _ in found.values():
            certificate.refine()
        message = _decide(found, started, max_seconds)
    evidence = {
        name: Evidence(certificate.lower + offset, certificate.upper + offset)
        for name, (certificate, offset) in found.items()
    }
    order = sorted(evidence, key=lambda name: -(evidence[name].lower + evidence[name].upper))
    return Comparison(
        tuple(
            Ranked(
                name,
                evidence[name],
                tuple(other for other in order if evidence[name].lower > evidence[other].upper),
            )
            for name in order
        ),
        message,
    )


def _names(models: Sequence[Any]) -> dict[str, Any]:
    """Names from the kernels, numbered where they repeat."""
    named: dict[str, Any] = {}
    for model in models:
        kernel = model.kernel if isinstance(model, GP) else getattr(model, "kernel", model)
        stem = kernel if isinstance(kernel, str) else type(kernel).__name__
        name, number = stem, 2
        while name in named:
            name, number = f"{stem} ({number})", number + 1
        named[name] = model
    return named


def _certificate(
    name: str, model: Any, X: np.ndarray, y: np.ndarray, memory_gb: float
) -> tuple[Certificate, float]:
    """A model's certificate in its own units, and what its units add to log p(y)."""
    if isinstance(model, GP):
        gp, inputs, targets, offset, Z = model, X, y, 0.0, None
    elif hasattr(model, "gp_"):
        gp, inputs = model.gp_, (X - model.X_shift_) / model.X_scale_
        targets = (y - model.y_shift_) / model.y_scale_
        offset, Z = -len(y) * float(np.log(model.y_scale_)), model._Z
    else:
        raise ValueError(
            f"models[{name!r}] must be a fitted GPRegressor or a GP, found {type(model).__name__}."
        )
    gp.kernel.check_columns(X.shape[1])
    arrays = (jnp.asarray(inputs), jnp.asarray(targets), None if Z is None else jnp.asarray(Z))
    gp = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=jnp.float64), gp)
    return Certificate(gp, *arrays, memory_gb=memory_gb), offset


def _decide(
    found: dict[str, tuple[Certificate, float]], started: float, max_seconds: float | None
) -> str:
    """Refine, widest first, the intervals that overlap with another; say why it ended."""
    while True:
        open_pairs = [
            (a, b)
            for i, (a, shift_a) in enumerate(found.values())
            for b, shift_b in list(found.values())[i + 1 :]
            if a.lower + shift_a <= b.upper + shift_b and b.lower + shift_b <= a.upper + shift_a
        ]
        if not open_pairs:
            return "All rankings are proven."
        left = None if max_seconds is None else max_seconds - (time.perf_counter() - started)
        candidates = {id(c): c for pair in open_pairs for c in pair if c.why_not(left) is None}
        if not candidates:
            reason = next(c.why_not(left) for pair in open_pairs for c in pair)
            return f"Not all rankings are proven: {reason}."
        max(candidates.values(), key=lambda c: c.width).refine()
