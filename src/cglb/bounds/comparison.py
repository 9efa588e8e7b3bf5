"""Model comparison with proof: rank models by intervals that contain their evidence.

If two intervals do not overlap, the ranking of the two models is proven, not estimated. Only intervals
that overlap with another are refined. With a confidence, those that overlap are narrowed by random
probes instead, and rankings that these decide are likely, not proven.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cglb.bounds.certificate import Certificate
from cglb.bounds.interval import (
    Evidence,
    check_confidence,
    check_seconds,
    first_points,
)
from cglb.core.precision import float64
from cglb.linalg.system import Solver, System
from cglb.model import GP

__all__ = ["Comparison", "Ranked", "compare"]

# a certificate per model, and what its units add to log p(y)
Found = dict[str, tuple[Certificate, float]]


@dataclass(frozen=True)
class Ranked:
    """One model of a comparison.

    Attributes:
        name: of the model.
        evidence: an interval that contains its log p(y).
        beats: the names of the models that are provably worse.
        likely_beats: those that are worse with the confidence that was asked for, proven or not.
    """

    name: str
    evidence: Evidence
    beats: tuple[str, ...]
    likely_beats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Models from best to worst, by the middle of their intervals, likely ones first.

    Attributes:
        ranking: the models, best first.
        message: whether all rankings are proven, and if not, why.
    """

    ranking: tuple[Ranked, ...]
    message: str

    @property
    def proven(self) -> tuple[tuple[str, str], ...]:
        """Every pair (better, worse) whose intervals do not overlap."""
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
                verdict = "not proven against the next"
                if below[0].name in model.likely_beats:
                    verdict = f"better than the next with {model.evidence.confidence:.0%} confidence"
                if below[0].name in model.beats:
                    verdict = "proven better than the next"
            low, high = _narrowest(model.evidence)
            lines.append(f"{place + 1}. {model.name:{width}s}  [{low:.2f}, {high:.2f}]  {verdict}")
        return "\n".join(line.rstrip() for line in [*lines, self.message])


def compare(
    models: Mapping[str, Any] | Sequence[Any],
    X: Any,
    y: Any,
    *,
    confidence: float | None = None,
    max_seconds: float | None = None,
    memory_gb: float = 4.0,
) -> Comparison:
    """Rank models by log p(y) of the targets y at the inputs X, in the units of y.

    Args:
        models: fitted `GPRegressor`s, or `GP`s (in the units of X and y), by name or in a sequence.
            Their hyperparameters are not changed.
        X: inputs; a table as a `GPRegressor` takes it, or an array.
        y: targets.
        confidence: decide what one level of certain intervals leaves open by random probes. All
            intervals together then hold with this probability.
        max_seconds: the time budget for refinement; without it, refinement continues until all rankings
            are proven or more memory would be needed.
        memory_gb: the memory budget.

    Raises:
        ValueError: if there are fewer than two models, one of them is not a model, or the confidence
            is not between 0 and 1.
    """
    named = dict(models) if isinstance(models, Mapping) else _names(models)
    if len(named) < 2:
        raise ValueError(f"models must contain at least two models, found {len(named)}.")
    y = np.asarray(y, dtype=np.float64)
    if y.shape != (len(X),):
        raise ValueError(f"y must have one number per row of X ({len(X)}), found shape {y.shape}.")
    check_seconds(max_seconds)
    if confidence is not None:
        check_confidence(confidence)
    started = time.perf_counter()
    with float64():
        found = {name: _certificate(name, model, X, y, memory_gb) for name, model in named.items()}
        for certificate, _ in found.values():
            certificate.refine()
        likely: dict[str, tuple[float, float]] = {}
        if confidence is None:
            message = _decide(found, started, max_seconds)
        else:
            message, likely = _estimate(found, confidence, started, max_seconds)
    evidence = {
        name: Evidence(
            certificate.lower, certificate.upper, certificate.remarks.strip(), certificate.rounding,
            likely.get(name), confidence if name in likely else None,
        ).shifted(offset)
        for name, (certificate, offset) in found.items()
    }  # fmt: skip
    return _ranked(evidence, message, confidence)


def _ranked(evidence: dict[str, Evidence], message: str, confidence: float | None) -> Comparison:
    narrow = {name: _narrowest(one) for name, one in evidence.items()}
    order = sorted(evidence, key=lambda name: -sum(narrow[name]))
    ranking = []
    for name in order:
        beats = tuple(other for other in order if evidence[name].lower > evidence[other].upper)
        likely = tuple(other for other in order if narrow[name][0] > narrow[other][1])
        ranking.append(Ranked(name, evidence[name], beats, () if confidence is None else likely))
    return Comparison(tuple(ranking), message)


def _narrowest(evidence: Evidence) -> tuple[float, float]:
    return (evidence.lower, evidence.upper) if evidence.likely is None else evidence.likely


def _names(models: Sequence[Any]) -> dict[str, Any]:
    """Names from the kernels, numbered if they repeat."""
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
    name: str, model: Any, X: Any, y: np.ndarray, memory_gb: float
) -> tuple[Certificate, float]:
    """The certificate of a model in its units, and what these units add to log p(y)."""
    if isinstance(model, GP):
        inputs = np.asarray(X, dtype=np.float64)
        model.kernel.check_columns(inputs.shape[1])
        gp, targets, Z, nats = model, y, None, 0.0
    elif hasattr(model, "in_model_units") and hasattr(model, "gp_"):
        gp, inputs, targets, Z, nats = model.in_model_units(X, y)
    else:
        raise ValueError(
            f"models[{name!r}] must be a fitted GPRegressor or a GP, found {type(model).__name__}."
        )
    gp = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=jnp.float64), gp)
    rows = jnp.asarray(inputs)
    points = first_points(gp.kernel, rows) if Z is None else jnp.asarray(Z)
    system = System(gp, rows, points, Solver(memory_gb=memory_gb))
    return Certificate(system, jnp.asarray(targets), memory_gb=memory_gb), nats


def _open_pairs(found: Found) -> list[tuple[str, str]]:
    """The pairs of models whose intervals overlap."""
    ends = {name: (c.lower + shift, c.upper + shift) for name, (c, shift) in found.items()}
    return [
        (a, b) for a, b in combinations(ends, 2) if ends[a][0] <= ends[b][1] and ends[b][0] <= ends[a][1]
    ]


def _estimate(
    found: Found, confidence: float, started: float, max_seconds: float | None
) -> tuple[str, dict[str, tuple[float, float]]]:
    """Likely intervals of the models in open pairs: the message, and the intervals by name."""
    names = sorted({name for pair in _open_pairs(found) for name in pair})
    each = 1.0 - (1.0 - confidence) / max(len(names), 1)  # the risks of all add up to that of the whole
    likely = {}
    for name in names:
        certificate, _ = found[name]
        left = None if max_seconds is None else max_seconds - (time.perf_counter() - started)
        likely[name], _ = certificate.likely(each, max(1.0, certificate.rows / 1000.0), left)
    if not likely:
        return "All rankings are proven.", likely
    return f"With {confidence:.0%} confidence all intervals contain the evidence of their model.", likely


def _decide(found: Found, started: float, max_seconds: float | None) -> str:
    """Refine intervals that overlap with another, the widest first; the message says why it stopped."""
    while True:
        open_pairs = [(found[a][0], found[b][0]) for a, b in _open_pairs(found)]
        if not open_pairs:
            return "All rankings are proven."
        left = None if max_seconds is None else max_seconds - (time.perf_counter() - started)
        candidates = {id(c): c for pair in open_pairs for c in pair if c.why_not(left) is None}
        if not candidates:
            reason = next(c.why_not(left) for pair in open_pairs for c in pair)
            return f"Not all rankings are proven: {reason}."
        max(candidates.values(), key=lambda c: c.width).refine()
