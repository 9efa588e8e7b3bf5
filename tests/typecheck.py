"""The type checker of the import hook: beartype, with an int accepted where a float is asked for.

Functions inside functions are not checked: they are made anew at each call, and making the checks of one
takes longer than most of them run.
"""

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(target: Callable[..., Any]) -> Callable[..., Any]:
    return target if "<locals>" in target.__qualname__ else _beartype(target)
