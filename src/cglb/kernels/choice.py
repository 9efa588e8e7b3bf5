"""From what a user calls a kernel to a kernel object: a name, None, an object, or scikit-learn's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from cglb.kernels.base import Kernel, find
from cglb.kernels.foreign import from_scikit_learn, is_from_scikit_learn

__all__ = ["DEFAULT", "as_kernel", "with_params"]

DEFAULT = "matern32"


def as_kernel(chosen: Any, d: int) -> Kernel:
    """The kernel for inputs with d columns.

    Raises:
        ValueError: if it is none, with what may be given.
    """
    if chosen is None:
        chosen = DEFAULT
    if isinstance(chosen, str):
        return find(chosen).default(d)
    if is_from_scikit_learn(chosen):
        return from_scikit_learn(chosen, d)
    if isinstance(chosen, Kernel):
        return chosen
    raise ValueError(
        f"kernel must be a name, a kernel of cglb or of scikit-learn, or None, found {chosen!r}."
    )


def with_params(chosen: Any, values: Mapping[str, Any]) -> Any:
    """What was chosen, with other values of some parameters."""
    if is_from_scikit_learn(chosen):
        from sklearn.base import clone

        return cast(Any, clone(chosen)).set_params(**values)
    if chosen is None or isinstance(chosen, str):
        chosen = find(chosen or DEFAULT)()
    return chosen.with_params(**values)
