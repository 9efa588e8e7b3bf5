"""The interface of bounds on log|K̂|, and their registry."""

from __future__ import annotations

import abc
import enum
import math
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from cglb.linalg.blocks import Blocks
from cglb.linalg.rounding import Rounding
from cglb.linalg.view import View

if TYPE_CHECKING:
    from cglb.linalg.system import System

__all__ = ["LogdetBound", "Side", "by_cost", "find", "names"]


class Side(enum.StrEnum):
    """Which side of log|K̂| a bound is on."""

    ABOVE = "above"
    BELOW = "below"


class LogdetBound(eqx.Module):
    """A bound on log|K̂|: its settings and, after `prepare`, what it needs from the data.

    It is valid for any model. Subclasses register themselves by `key`.

    Attributes:
        key: how users select it.
        side: whether it bounds log|K̂| from above (for lower bounds on the evidence) or from below.
        rows: whether it uses A [m, n] itself, not only AAᵀ, which makes gradients more expensive.
        after: keys of the bounds to train with first, loosest first. Training that starts with a tight
            bound can end in an optimum with collapsed noise.
        cost: its place in the order in which "auto" and the certificate try bounds, cheapest first; None
            excludes it from both.
    """

    key: ClassVar[str] = ""
    side: ClassVar[Side] = Side.ABOVE
    rows: ClassVar[bool] = False
    after: ClassVar[tuple[str, ...]] = ()
    cost: ClassVar[float | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.key:
            _REGISTRY[cls.key] = cls

    @property
    def name(self) -> str:
        """The key with its settings, for histories and reports."""
        return self.key

    def prepare(self, system: System) -> LogdetBound:
        """This bound with what it needs from the data (such as blocks and neighbours), held fixed."""
        return self

    @property
    def shared_blocks(self) -> Blocks | None:
        """Blocks that it has prepared, which a preconditioner may share."""
        return None

    def settle(self, system: System) -> LogdetBound:
        """The bound to train with for a round: this one, or the one that it chooses for this system."""
        return self

    def variants(self, m: int) -> tuple[LogdetBound, ...]:
        """The forms of this bound that "auto" and the certificate try with m inducing points."""
        return (self,)

    def certain(self, view: View, rounding: Rounding) -> float:
        """The value, moved to the safe side by what rounding may have changed; NaN if it is not finite.

        For concrete arrays.
        """
        value = float(self(view))
        margin = self.margin(value, view, rounding)
        return value + margin if self.side == Side.ABOVE else value - margin

    def margin(self, value: float, view: View, rounding: Rounding) -> float:
        """How far rounding may have moved the value to the wrong side.

        By default that of bounds that use log|Q̂| and diag(K − Q). A bound that computes with more than
        that gives its own.
        """
        return rounding.logdet

    @abc.abstractmethod
    def __call__(self, view: View) -> Float[Array, ""]:
        """The value of the bound, differentiable in the view."""


_REGISTRY: dict[str, type[LogdetBound]] = {}


def names(side: Side) -> tuple[str, ...]:
    """The keys of all bounds on one side, those with a cost first."""
    found = [kind for kind in _REGISTRY.values() if kind.side == side]
    return tuple(kind.key for kind in sorted(found, key=_place))


def by_cost(side: Side) -> tuple[LogdetBound, ...]:
    """One bound of each kind that takes part in automatic choices, cheapest first."""
    kinds = [kind for kind in _REGISTRY.values() if kind.side == side and kind.cost is not None]
    return tuple(kind() for kind in sorted(kinds, key=_place))


def _place(kind: type[LogdetBound]) -> tuple[float, str]:
    return (math.inf if kind.cost is None else kind.cost), kind.key


def find(logdet: str | LogdetBound, side: Side) -> LogdetBound:
    """The bound with this key; objects that bound log|K̂| from this side pass through.

    Raises:
        ValueError: if there is no such bound; the message lists the keys.
    """
    if isinstance(logdet, str) and logdet in names(side):
        return _REGISTRY[logdet]()
    if isinstance(logdet, LogdetBound) and logdet.side == side:
        return logdet
    raise ValueError(
        f"logdet must be one of {', '.join(names(side))}, or an object that bounds log|K̂| from {side}, "
        f"found {logdet!r}."
    )
