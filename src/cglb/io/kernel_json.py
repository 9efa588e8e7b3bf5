"""Kernels as JSON: where the class is from, and its fields, exact to the last bit.

    {"kernel": "RBF", "module": "cglb.kernels", "fields": {"lengthscale": {"array": …}, …}}

A field may hold arrays, kernels, numbers, text, booleans, None, and tuples, lists or dictionaries of
these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from cglb.core.errors import StoreError
from cglb.io.tensorfile import is_number
from cglb.kernels.base import Kernel, find_origin, origin

__all__ = ["kernel_from_json", "kernel_to_json"]


def kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    """What `kernel_from_json` needs to make the kernel again, in another process too.

    Raises:
        StoreError: if a field holds something that JSON cannot.
    """
    module, name = origin(type(kernel))
    fields = {}
    for field in dataclasses.fields(kernel):
        try:
            fields[field.name] = _encode(getattr(kernel, field.name))
        except TypeError as error:
            raise StoreError(
                f"{name} cannot be saved: its field {field.name!r} holds {error}. Fields of a kernel "
                "that is saved hold arrays, kernels, numbers, text, booleans, None, or tuples, lists "
                "and dictionaries of them."
            ) from None
    return {"kernel": name, "module": module, "fields": fields}


def kernel_from_json(document: Mapping[str, Any]) -> Kernel:
    """The inverse of `kernel_to_json`, for classes that have been defined; nothing is imported.

    Raises:
        StoreError: if the class is not known, or has other fields than the one that was saved.
    """
    module, name = document["module"], document["kernel"]
    kind = _known(module, name)
    known = {field.name for field in dataclasses.fields(kind)}
    if known != document["fields"].keys():
        raise StoreError(
            f"The file has a kernel {name!r} with the fields {sorted(document['fields'])}, but in "
            f"{module!r} it has {sorted(known)}. Load it with the definition that was saved."
        )
    # not through the constructor, which may take other arguments than the fields
    kernel = object.__new__(kind)
    for field, value in document["fields"].items():
        object.__setattr__(kernel, field, _decode(value))
    for parent in kind.__mro__:  # what the constructor would have checked
        if "__check_init__" in vars(parent):
            parent.__check_init__(kernel)
    return kernel


def _known(module: Any, name: Any) -> type[Kernel]:
    """The class, if it has been defined in this process.

    A file never decides what is imported: to import a module is to run its code.
    """
    kind = find_origin(module, name) if isinstance(module, str) and isinstance(name, str) else None
    if kind is None:
        raise StoreError(
            f"The file has a kernel {name!r} of the module {module!r}, which is not known here. Import "
            "the module that defines it before loading (`cglb --import MODULE …`), if you trust it; if "
            "a script or a notebook defined it, define it there again."
        )
    return kind


def _encode(value: Any) -> Any:
    """JSON that says its own type; TypeError with the type's name if there is none for it."""
    match value:
        case None | bool() | str():
            return value
        case np.ndarray() | np.generic() | jax.Array():
            array = np.asarray(value)
            if array.dtype.kind not in "biuf":
                raise TypeError(f"an array of {array.dtype}")
            # the shortest text of a float64 that reads back as the same number
            return {"array": array.ravel().tolist(), "dtype": array.dtype.str, "shape": array.shape}
        case int() | float():
            return value
        case Kernel():
            return kernel_to_json(value)
        case tuple() | list():
            return {type(value).__name__: [_encode(item) for item in value]}
        case dict() if all(isinstance(key, str) for key in value):
            return {"dict": {key: _encode(item) for key, item in value.items()}}
    raise TypeError(f"a {type(value).__name__}")


def _decode(value: Any) -> Any:
    match value:
        case {"kernel": _}:
            return kernel_from_json(value)
        case {"array": entries, "dtype": dtype, "shape": shape}:
            if np.dtype(dtype).kind not in "biuf" or not isinstance(entries, list):
                raise StoreError(f"The file has an array of {dtype}, which no kernel holds.")
            if np.dtype(dtype).kind == "f" and not all(map(is_number, entries)):
                raise StoreError("The file has an array of numbers with entries that are none.")
            return np.array(entries, dtype=dtype).reshape(shape)
        case {"tuple": items}:
            return tuple(_decode(item) for item in items)
        case {"list": items}:
            return [_decode(item) for item in items]
        case {"dict": items}:
            return {key: _decode(item) for key, item in items.items()}
    return value
