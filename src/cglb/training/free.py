"""Between natural hyperparameters and one free vector for an optimiser.

A positive parameter is floor + transform(free), so that every free vector is a valid model and no noise
or lengthscale falls below its floor (1e-6 in the paper). The mean is free as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, SequenceKey
from jaxtyping import Array, Float

from cglb.core.validation import boundary
from cglb.model import GP

__all__ = ["LOG", "SOFTPLUS", "TRANSFORMS", "Parameters", "Transform"]

DEFAULT_FLOOR = 1e-6

# the hyperparameters as a vector without bounds
Free = Float[Array, " p"] | Float[np.ndarray, " p"]


@dataclass(frozen=True)
class Transform:
    """An increasing, differentiable map from the reals onto the positive numbers.

    Args:
        name: what it is called.
        forward: from a free value to the positive amount above the floor.
        inverse: its inverse.
    """

    name: str
    forward: Callable[[Array], Array]
    inverse: Callable[[Array], Array]


def _softplus_inverse(x: Array) -> Array:
    """The t with log(1 + exp(t)) = x > 0, exact for small and for large x."""
    return x + jnp.log(-jnp.expm1(-x))


# log(1 + exp(free)): the paper's
SOFTPLUS = Transform("softplus", jax.nn.softplus, _softplus_inverse)
# exp(free): equal steps change a parameter by equal factors, whatever its size
LOG = Transform("log", jnp.exp, jnp.log)
TRANSFORMS = {transform.name: transform for transform in (LOG, SOFTPLUS)}


@dataclass(frozen=True)
class Parameters:
    """A flat view of a GP's hyperparameters.

    Args:
        template: any GP of the wanted structure; fixed parameters keep its values.
        floor: the lower limit of positive parameters, one number or one by name. A name matches a whole
            parameter ("noise") or a group ("kernel"); the longest match counts, then `DEFAULT_FLOOR`.
        fixed: names that are not optimised.
        transform: from free values to positive ones.

    Raises:
        ValueError: if a floor is negative or not finite, or a name matches no parameter.
    """

    template: GP
    floor: float | Mapping[str, float] = DEFAULT_FLOOR
    fixed: tuple[str, ...] = ()
    transform: Transform = SOFTPLUS

    def __post_init__(self) -> None:
        floors = self.floor.values() if isinstance(self.floor, Mapping) else [self.floor]
        if any(not (f >= 0.0 and np.isfinite(f)) for f in floors):
            raise ValueError(f"floor must be finite and at least 0, found {self.floor}.")
        known = [leaf.name for leaf in self._leaves]
        given = [*self.fixed, *(self.floor if isinstance(self.floor, Mapping) else ())]
        for name in given:
            if not any(_matches(name, leaf) for leaf in known):
                raise ValueError(f"No parameter is called {name!r}. There are: {', '.join(known)}.")

    @property
    def noise_floor(self) -> float:
        """The lower limit of the noise."""
        return self._floor_of("noise")

    def with_noise_floor(self, least: float) -> Parameters:
        """The same with a floor of at least `least` for the noise."""
        if least <= self.noise_floor:
            return self
        others = self.floor if isinstance(self.floor, Mapping) else {"kernel": self.floor}
        return dataclasses.replace(self, floor={**others, "noise": least})

    @cached_property
    def _leaves(self) -> list[_Leaf]:
        found, _ = jax.tree_util.tree_flatten_with_path(self.template)
        leaves = []
        for path, value in found:
            name = _name(path)
            leaves.append(
                _Leaf(
                    name=name,
                    shape=np.shape(value),
                    real=_is_real(self.template, path),
                    floor=self._floor_of(name),
                    fixed=any(_matches(fixed, name) for fixed in self.fixed),
                )
            )
        return leaves

    def _floor_of(self, name: str) -> float:
        if not isinstance(self.floor, Mapping):
            return float(self.floor)
        matching = [key for key in self.floor if _matches(key, name)]
        return float(self.floor[max(matching, key=len)]) if matching else DEFAULT_FLOOR

    def positive(self, name: str) -> tuple[int, ...]:
        """The numbers of the positive arrays of a model that a name matches.

        Raises:
            ValueError: if there are none.
        """
        found = [i for i, leaf in enumerate(self._leaves) if not leaf.real and _matches(name, leaf.name)]
        if not found:
            known = ", ".join(leaf.name for leaf in self._leaves if not leaf.real)
            raise ValueError(f"No positive parameter is called {name!r}. There are: {known}.")
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per entry of the free vector, such as "kernel.lengthscale[2]"."""
        names: list[str] = []
        for leaf in self._leaves:
            if leaf.fixed:
                continue
            if leaf.shape == ():
                names.append(leaf.name)
            else:
                names.extend(f"{leaf.name}{_index(i)}" for i in np.ndindex(leaf.shape))
        return tuple(names)

    @property
    def floors(self) -> Float[np.ndarray, " p"]:
        """The floor of each entry; −inf for real parameters."""
        parts = [
            np.full(leaf.size, -np.inf if leaf.real else leaf.floor)
            for leaf in self._leaves
            if not leaf.fixed
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _values(self, gp: GP) -> list[Any]:
        """The leaves of `gp`, which must be built like the template."""
        values, treedef = jax.tree.flatten(gp)
        if treedef != jax.tree.structure(self.template) or any(
            np.shape(value) != leaf.shape for value, leaf in zip(values, self._leaves, strict=True)
        ):
            raise ValueError(f"gp must be built like the template {self.template}, found {gp}.")
        return values

    @boundary
    def natural(self, gp: GP) -> Float[Array, " p"]:
        """The natural values in the order of `names`.

        Raises:
            ValueError: if `gp` is not built like the template.
        """
        values = [
            jnp.reshape(jnp.asarray(value), (-1,))
            for value, leaf in zip(self._values(gp), self._leaves, strict=True)
            if not leaf.fixed
        ]
        return jnp.concatenate(values) if values else jnp.zeros(0)

    @boundary
    def flatten(self, gp: GP) -> Float[Array, " p"]:
        """The free vector of `gp`. A value at or below its floor is put just above it.

        Raises:
            ValueError: if `gp` is not built like the template.
        """
        return _free(tuple(self._leaves), self.transform, tuple(self._values(gp)))

    @boundary
    def unflatten(self, free: Float[Array, " p"]) -> GP:
        """The GP of a free vector; differentiable.

        Raises:
            ValueError: if `free` has another length than `names`.
        """
        size = sum(leaf.size for leaf in self._leaves if not leaf.fixed)
        if free.shape[0] != size:
            raise ValueError(f"free must have {size} entries, found {free.shape[0]}.")
        return self.model(free)

    # ---- for use inside the package: compiled, and nothing is checked ----

    def model(self, free: Free) -> GP:
        """The GP of a free vector; differentiable."""
        return _model(tuple(self._leaves), self.transform, self.template, free)

    def pull(self, free: Free, gp_bar: GP) -> Float[Array, " p"]:
        """The gradient in the free vector, from the gradient in the model."""
        return _pull(tuple(self._leaves), self.transform, self.template, free, gp_bar)

    def values_by_name(self, gp: GP) -> dict[str, float]:
        """The natural values as plain numbers, by the names of `names`."""
        parts = [
            np.ravel(np.asarray(value))
            for value, leaf in zip(jax.tree.leaves(gp), self._leaves, strict=True)
            if not leaf.fixed
        ]
        values = np.concatenate(parts).tolist() if parts else []
        return dict(zip(self.names, values, strict=True))


@partial(jax.jit, static_argnums=(0, 1))
def _free(leaves: tuple[_Leaf, ...], transform: Transform, values: tuple[Array, ...]) -> Array:
    parts = []
    for value, leaf in zip(values, leaves, strict=True):
        if leaf.fixed:
            continue
        value = jnp.reshape(jnp.asarray(value), (-1,))
        if not leaf.real:
            above = jnp.maximum(value - leaf.floor, 1e-12 * jnp.maximum(value, 1e-300))
            value = transform.inverse(above)
        parts.append(value)
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


@partial(jax.jit, static_argnums=(0, 1))
def _model(leaves: tuple[_Leaf, ...], transform: Transform, template: GP, free: Array) -> GP:
    known, treedef = jax.tree.flatten(template)
    start, values = 0, []
    for value, leaf in zip(known, leaves, strict=True):
        if leaf.fixed:
            values.append(jnp.asarray(value))
            continue
        part = free[start : start + leaf.size]
        start += leaf.size
        if not leaf.real:
            part = leaf.floor + transform.forward(part)
        values.append(jnp.reshape(part, leaf.shape))
    return jax.tree.unflatten(treedef, values)


@partial(jax.jit, static_argnums=(0, 1))
def _pull(
    leaves: tuple[_Leaf, ...], transform: Transform, template: GP, free: Array, gp_bar: GP
) -> Array:
    _, pull = jax.vjp(lambda free: _model(leaves, transform, template, free), free)
    return pull(gp_bar)[0]


@dataclass(frozen=True)
class _Leaf:
    name: str
    shape: tuple[int, ...]
    real: bool
    floor: float
    fixed: bool

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


def _name(path: tuple[Any, ...]) -> str:
    """A path in a pytree as one would write it, such as "kernel.parts[0].lengthscale"."""
    name = ""
    for key in path:
        match key:
            case GetAttrKey(name=attribute):
                name += f".{attribute}" if name else attribute
            case SequenceKey(idx=index):
                name += f"[{index}]"
            case _:  # of a dictionary, or of a node whose children have numbers only
                name += f"[{key.key}]"
    return name


def _index(index: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, index))}]"


def _matches(key: str, name: str) -> bool:
    """Whether `key` names this parameter, a group that holds it, or its last part."""
    return (
        key == name
        or name.startswith((key + ".", key + "["))
        or name.endswith("." + key)
        or name.rpartition("[")[0].endswith("." + key)
    )


def _is_real(node: Any, path: tuple[Any, ...]) -> bool:
    """Whether a field on the path has the mark that `parameters.parameter(real=True)` leaves."""
    for key in path:
        match key:
            case GetAttrKey(name=attribute):
                field = next(f for f in dataclasses.fields(node) if f.name == attribute)
                if field.metadata.get("real", False):
                    return True
                node = getattr(node, attribute)
            case SequenceKey(idx=index):
                node = node[index]
            case DictKey(key=name):
                node = node[name]
            case _:  # a node of a kind that has no fields to carry a mark
                return False
    return False
