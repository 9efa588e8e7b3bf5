"""Between natural hyperparameters and one free vector for an optimiser.

A positive parameter is floor + softplus(free), so that every free vector is a valid model and no noise
or lengthscale falls below its floor (1e-6 in the paper). The mean is free as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cglb.checks import boundary
from cglb.model import GP

__all__ = ["Parameters"]

DEFAULT_FLOOR = 1e-6


def softplus_inverse(x: Any) -> Any:
    """The t with log(1 + exp(t)) = x > 0, exact for small and for large x."""
    return x + jnp.log(-jnp.expm1(-x))


@dataclass(frozen=True)
class Parameters:
    """A flat view of a GP's hyperparameters.

    template: any GP of the wanted structure; fixed parameters keep its values.
    floor:    the lower limit of positive parameters, one number or one by name. A name matches a whole
              parameter ("noise") or a group ("kernel"); the longest match counts, then `DEFAULT_FLOOR`.
    fixed:    names that are not optimised.
    """

    template: GP
    floor: float | Mapping[str, float] = DEFAULT_FLOOR
    fixed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        floors = self.floor.values() if isinstance(self.floor, Mapping) else [self.floor]
        if any(not (f >= 0.0 and np.isfinite(f)) for f in floors):
            raise ValueError(f"floor must be finite and at least 0, found {self.floor}.")
        known = [leaf.name for leaf in self._leaves]
        given = [*self.fixed, *(self.floor if isinstance(self.floor, Mapping) else ())]
        for name in given:
            if not any(_matches(name, leaf) for leaf in known):
                raise ValueError(f"No parameter is called {name!r}. There are: {', '.join(known)}.")

    @cached_property
    def _leaves(self) -> list[_Leaf]:
        found, _ = jax.tree_util.tree_flatten_with_path(self.template)
        leaves = []
        for path, value in found:
            keys = [key.name for key in path]
            name = ".".join(keys)
            leaves.append(
                _Leaf(
                    name=name,
                    shape=tuple(value.shape),
                    real=_is_real(self.template, keys),
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

    @property
    def names(self) -> tuple[str, ...]:
        """One name an entry of the free vector, such as "kernel.lengthscale[2]"."""
        names: list[str] = []
        for leaf in self._leaves:
            if leaf.fixed:
                continue
            if leaf.shape == ():
                names.append(leaf.name)
            else:
                names.extend(f"{leaf.name}[{i}]" for i in range(leaf.shape[0]))
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
        """The leaves of `gp`; ValueError if it is not built like the template."""
        values, treedef = jax.tree.flatten(gp)
        if treedef != jax.tree.structure(self.template) or any(
            value.shape != leaf.shape for value, leaf in zip(values, self._leaves, strict=True)
        ):
            raise ValueError(f"gp must be built like the template {self.template}, found {gp}.")
        return values

    @boundary
    def natural(self, gp: GP) -> Float[Array, " p"]:
        """The natural values in the order of `names`."""
        values = [
            jnp.reshape(jnp.asarray(value), (-1,))
            for value, leaf in zip(self._values(gp), self._leaves, strict=True)
            if not leaf.fixed
        ]
        return jnp.concatenate(values) if values else jnp.zeros(0)

    @boundary
    def flatten(self, gp: GP) -> Float[Array, " p"]:
        """The free vector of `gp`. A value at or below its floor is put just above it."""
        parts = []
        for value, leaf in zip(self._values(gp), self._leaves, strict=True):
            if leaf.fixed:
                continue
            value = jnp.reshape(jnp.asarray(value), (-1,))
            if not leaf.real:
                above = jnp.maximum(value - leaf.floor, 1e-12 * jnp.maximum(value, 1e-300))
                value = softplus_inverse(above)
            parts.append(value)
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    @boundary
    def unflatten(self, free: Float[Array, " p"]) -> GP:
        """The GP of a free vector; differentiable."""
        leaves, treedef = jax.tree.flatten(self.template)
        size = sum(leaf.size for leaf in self._leaves if not leaf.fixed)
        if free.shape[0] != size:
            raise ValueError(f"free must have {size} entries, found {free.shape[0]}.")
        start = 0
        values = []
        for value, leaf in zip(leaves, self._leaves, strict=True):
            if leaf.fixed:
                values.append(jnp.asarray(value))
                continue
            part = free[start : start + leaf.size]
            start += leaf.size
            if not leaf.real:
                part = leaf.floor + jax.nn.softplus(part)
            values.append(jnp.reshape(part, leaf.shape))
        return jax.tree.unflatten(treedef, values)


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


def _matches(key: str, name: str) -> bool:
    """Whether `key` names this parameter, a group that holds it, or its last part."""
    return key == name or name.startswith(key + ".") or name.endswith("." + key)


def _is_real(module: Any, keys: list[str]) -> bool:
    """The mark that `parameters.parameter(real=True)` left on the field at this path."""
    for key in keys[:-1]:
        module = getattr(module, key)
    field = next(f for f in dataclasses.fields(module) if f.name == keys[-1])
    return bool(field.metadata.get("real", False))
