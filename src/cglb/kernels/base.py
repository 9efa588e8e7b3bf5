"""What a covariance function is, and the registry of all of them.

A kernel is a small pytree of natural-valued parameters. `kernel(X1, X2)` is the matrix of covariances
[n1, n2] and `kernel.diag(X)` its diagonal [n] for X1 = X2 = X. Kernels combine: `k1 + k2`, `k1 * k2`,
`2.0 * k`, `k + 1.0`, `k ** 2`, and `k.on([0, 3])`, a restriction to columns.

The matrix is made in two steps, so that loops over tiles do the first only once: `features` of each row
(scaled inputs and their squared norms, say), and the covariances `between` rows given by their features.

A kernel of your own is a subclass of `Kernel` with `between` and `diag`. Everything else has a default.
Its definition registers it, so that it can be saved and loaded, and found by name.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from cglb.core.parameters import as_parameter, describe
from cglb.core.precision import Number
from cglb.kernels.distance import entry_rounding, middle
from cglb.kernels.probe import probe_relevance

__all__ = ["Features", "Kernel", "find", "find_origin", "names", "origin", "relevance", "replace_fields"]

# a pytree of arrays, each with one row per row of the inputs
Features = Any

PACKAGE = "cglb.kernels"


class Kernel(eqx.Module):
    """A covariance function k(x, x').

    Subclasses give `between` and `diag`; `features`, `check_columns`, `relevance`, `pull_between` and
    `default` where the ones here do not serve. The definition of a subclass registers it under the name
    of its class, or under another: `class MyKernel(Kernel, known_as="mine")`.
    """

    __array_ufunc__ = None  # NumPy leaves `array * kernel` to `Kernel.__rmul__`

    def __init_subclass__(cls, known_as: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        # a class defined again, as a notebook does, takes the place of the old one
        _REGISTRY[origin(cls)] = (known_as or cls.__name__, cls)

    def __call__(self, X1: Float[Array, "n1 d"], X2: Float[Array, "n2 d"]) -> Float[Array, "n1 n2"]:
        """Covariances between the rows of X1 and of X2."""
        if X1.shape[1] != X2.shape[1]:  # one column would broadcast
            raise ValueError(f"X1 has {X1.shape[1]} columns, but X2 has {X2.shape[1]}.")
        self.check_columns(X1.shape[1])
        return _covariances(self, X1, X2)

    def features(self, X: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Features:
        """What `between` needs of each row: arrays with n rows; by default the inputs themselves.

        Args:
            X: inputs.
            origin: a point near the data, the same for both sides. A stationary kernel may shift by it,
                to keep rounding small; no gradient goes through it.
        """
        return X

    @abc.abstractmethod
    def between(self, F1: Features, F2: Features) -> Float[Array, "n1 n2"]:
        """Covariances between rows given by their features."""

    def through(
        self, F1: Features, F2: Features, function: Callable[[Float[Array, "n1 n2"]], Any]
    ) -> Any:
        """function(K) for the covariances K between rows, given their features.

        As `between`, for kernels that may have to make K again: they then decide after K was used, which
        costs less where the result is smaller than K.
        """
        return function(self.between(F1, F2))

    def pull_between(
        self, F1: Features, F2: Features, W: Float[Array, "n1 n2"], inputs: bool
    ) -> tuple[Kernel, Features, Features]:
        """Gradient of Σᵢⱼ Wᵢⱼ between(F1, F2)ᵢⱼ in (kernel, F1, F2); by default through autodiff.

        Args:
            F1: features of the first rows.
            F2: features of the second rows.
            W: weights, the gradient in the matrix.
            inputs: whether single rows of the gradients in F1 and F2 will be looked at. If not, a kernel
                may give any F1_bar and F2_bar that lead to the same gradient in its own parameters: the
                pullbacks of `features` with F1_bar at X1 and with F2_bar at X2 have the right sum.
                This holds for every W, so a combination may hand `inputs` on to its parts with whatever
                weights they need, if it hands the inputs on as they are. A kernel that gives a part
                inputs that depend on parameters (a warping) must ask that part with inputs=True.
        """
        _, pull = jax.vjp(lambda kernel, f1, f2: kernel.between(f1, f2), self, F1, F2)
        return pull(W)

    @abc.abstractmethod
    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Prior variances k(x, x)."""

    def check_columns(self, d: int) -> None:
        """Check that this kernel can take inputs with d columns.

        Raises:
            ValueError: if it cannot.
        """

    def rounding(self, d: int, differences: bool = False) -> float:
        """An upper bound on |computed − exact|/√(k(x, x)k(x', x')) of an entry on d columns, in float64.

        Certificates widen their intervals by what this may change. By default that of the distances that
        the kernels of this package use; a kernel whose entries are less precise must say so.

        Args:
            d: columns.
            differences: for features changed by `distance.by_differences`; they make a difference only
                to kernels that use `distance.Rows`.
        """
        return entry_rounding(d)

    def relevance(self, d: int) -> Float[np.ndarray, " d"]:
        """How fast the function moves with each of d columns, in units of an inverse lengthscale.

        Neighbours are the rows nearest in inputs times this. A column that the kernel ignores has 0. By
        default it is measured on the kernel itself: see `cglb.kernels.probe`.
        """
        return probe_relevance(self, d)

    @classmethod
    def default(cls, d: int) -> Kernel:
        """What the name of the class alone stands for, on standardised inputs with d columns.

        By default the class called without arguments; a kernel with one parameter per column gives d.

        Raises:
            ValueError: if the class needs arguments, as combinations of kernels do.
        """
        try:
            inspect.signature(cls.__init__).bind(None)
        except TypeError as missing:
            raise ValueError(
                f"A {cls.__name__} cannot be made from its name alone ({missing}). "
                "Build one and pass that kernel."
            ) from None
        return cls()

    def on(self, columns: Sequence[int | str] | int | str) -> Kernel:
        """This kernel, seeing only the given columns: numbers from 0, or names of a table's columns.

        `GPRegressor` finds the columns of the names; the functions on arrays take numbers only.
        """
        from cglb.kernels.combinations import Columns

        return Columns(self, (columns,) if isinstance(columns, int | str) else tuple(columns))

    def rescaled(self, units: Float[np.ndarray, " d"]) -> Kernel:
        """The kernel k' on inputs in other units with k'(x/units, x'/units) = k(x, x').

        Args:
            units: one positive number per column.

        Raises:
            ValueError: if the kernel does not say how its parameters depend on units.
        """
        raise ValueError(
            f"{type(self).__name__} does not say how its parameters depend on the units of the inputs. "
            "Define its method `rescaled`, or give it in standardised units (kernel_units)."
        )

    # ---- parameters by name, as scikit-learn reads them ----

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The fields by name; those of a kernel inside as `name__field`."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if deep:
            inner = {name: value for name, value in found.items() if isinstance(value, Kernel)}
            for name, kernel in inner.items():
                found |= {f"{name}__{key}": value for key, value in kernel.get_params().items()}
        return found

    def with_params(self, **values: Any) -> Kernel:
        """This kernel with other values of some fields, named as in `get_params`.

        Raises:
            ValueError: if there is no field of a name.
        """
        known = {field.name for field in dataclasses.fields(self)}
        inner: dict[str, dict[str, Any]] = {}
        for name in list(values):
            first, _, rest = name.partition("__")
            if first not in known or (rest and not isinstance(getattr(self, first), Kernel)):
                raise ValueError(
                    f"{type(self).__name__} has no parameter {name!r}. It has: "
                    f"{', '.join(self.get_params())}."
                )
            if rest:
                inner.setdefault(first, {})[rest] = values.pop(name)
        values |= {name: getattr(self, name).with_params(**more) for name, more in inner.items()}
        return replace_fields(self, values)

    def __sklearn_clone__(self) -> Kernel:
        """Kernels never change, so a copy is not needed."""
        return self

    # The operators import what they build when they are called: combinations are kernels themselves.

    def __add__(self, other: Kernel | Number | float | int) -> Kernel:
        from cglb.kernels.combinations import Sum
        from cglb.kernels.linear import Constant

        if isinstance(other, int) and other == 0:  # where sum([k1, k2]) starts
            return self
        return Sum(self, other if isinstance(other, Kernel) else Constant(as_parameter(other)))

    def __radd__(self, other: Number | float | int) -> Kernel:
        return self + other

    def __mul__(self, other: Kernel | Number | float | int) -> Kernel:
        from cglb.kernels.combinations import Product, Scaled

        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, as_parameter(other))

    def __rmul__(self, other: Number | float | int) -> Kernel:
        return self * other

    def __pow__(self, exponent: int) -> Kernel:
        from cglb.kernels.combinations import Power

        return Power(self, exponent)

    def __repr__(self) -> str:
        return describe(self)


def replace_fields(kernel: Kernel, values: dict[str, Any]) -> Kernel:
    """The kernel with other values of some fields, checked as its constructor does."""
    try:
        return dataclasses.replace(cast(Any, kernel), **values)
    except TypeError:  # a constructor of its own, with other arguments than the fields
        copy = object.__new__(type(kernel))
        for field in dataclasses.fields(kernel):
            value = (
                as_parameter(values[field.name]) if field.name in values else getattr(kernel, field.name)
            )
            object.__setattr__(copy, field.name, value)
        return copy


def relevance(kernel: Kernel, varies: Bool[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """The kernel's relevance with its largest entry scaled to 1.

    Args:
        kernel: any kernel.
        varies: whether each column varies. Nothing was learned about a lengthscale of a column that does
            not, so it counts as 0.
    """
    raw = np.where(varies, kernel.relevance(len(varies)), 0.0)
    top = raw.max(initial=0.0)
    return raw / top if top > 0.0 else raw


@eqx.filter_jit
def _covariances(kernel: Kernel, X1: Float[Array, "n1 d"], X2: Float[Array, "n2 d"]) -> Array:
    """The matrix of all pairs as one compiled program; step by step it would be dozens."""
    nearby = middle(X2)
    return kernel.between(kernel.features(X1, nearby), kernel.features(X2, nearby))


# ---- the registry ----

# origin -> (name, class), for every kernel that was defined
_REGISTRY: dict[tuple[str, str], tuple[str, type[Kernel]]] = {}


def origin(kind: type[Kernel]) -> tuple[str, str]:
    """Where a class is from: its module and its qualified name there.

    The module of cglb's own kernels is the package that exports them, so that files do not depend on how
    the package is cut.
    """
    own = kind.__module__.startswith(PACKAGE + ".")
    return PACKAGE if own else kind.__module__, kind.__qualname__


def find_origin(module: str, qualified_name: str) -> type[Kernel] | None:
    """The class that was defined there, or None if there was none."""
    return _REGISTRY.get((module, qualified_name), ("", None))[1]


def find(name: str) -> type[Kernel]:
    """The kernel of this name, in any case and with or without underscores ("rational_quadratic").

    Raises:
        ValueError: if there is no kernel of this name, or more than one.
    """
    found = [kind for known_as, kind in _concrete() if _plain(known_as) == _plain(name)]
    if not found:
        raise ValueError(f"There is no kernel called {name!r}. There are: {', '.join(names())}.")
    if len(found) > 1:
        places = ", ".join(".".join(origin(kind)) for kind in found)
        raise ValueError(
            f"The name {name!r} means more than one kernel: {places}. Pass an object of the one you "
            "mean, or define one of them with another known_as=…."
        )
    return found[0]


def names() -> tuple[str, ...]:
    """The names that stand for a kernel without arguments, in alphabetical order."""
    return tuple(sorted({known_as for known_as, kind in _concrete() if _is_whole(kind)}, key=str.lower))


def _is_whole(kind: type[Kernel]) -> bool:
    """Whether the name alone is enough, unlike for combinations of kernels."""
    try:
        kind.default(1)
    except ValueError:
        return False
    return True


def _concrete() -> list[tuple[str, type[Kernel]]]:
    """Those that users build; a name that begins with "_" is for use inside the package."""
    return [
        entry
        for entry in _REGISTRY.values()
        if not inspect.isabstract(entry[1]) and not entry[0].startswith("_")
    ]


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
