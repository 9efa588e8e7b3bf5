"""Options that several commands take, as fields of a dataclass."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cglb.cli import common
from cglb.data.table import Table

__all__ = ["Training", "expanded"]


@dataclass(frozen=True)
class Training:
    """The table to learn from and the settings of training. None keeps the default of `GPRegressor`."""

    columns: common.Columns = None
    exclude: common.Exclude = None
    method: Annotated[
        str | None, typer.Option(help="What is maximised: auto, cglb, sgpr, exact or iterative.")
    ] = None
    num_inducing: Annotated[
        int | None, typer.Option("--num-inducing", "-m", help="Inducing points.")
    ] = None
    max_steps: Annotated[int | None, typer.Option(help="Optimiser steps at most.")] = None
    max_seconds: Annotated[float | None, typer.Option(help="Seconds of training at most.")] = None
    seed: Annotated[int | None, typer.Option(help="Decides what is random. The default is 0.")] = None
    drop_missing: common.DropMissing = False
    impute: common.Impute = False
    no_header: common.NoHeader = False

    def read(self, data: str, target: str, part: tuple[int, int] = (0, 1)) -> tuple[Table, Any]:
        """The inputs and the target [n] in a file, of which this process reads a part."""
        return common.read_training(data, target, self.columns, self.exclude, not self.no_header, part)

    def settings(self) -> dict[str, Any]:
        """Arguments of `GPRegressor`: those that were given."""
        wanted = {
            "method": self.method,
            "num_inducing": self.num_inducing,
            "max_steps": self.max_steps,
            "max_seconds": self.max_seconds,
            "random_state": self.seed,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        return {**given, "drop_missing": self.drop_missing, "impute": self.impute}


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each field of its `training: Training` as an option of its own."""
    hints = typing.get_type_hints(command, include_extras=True)
    shared = typing.get_type_hints(Training, include_extras=True)
    fields = inspect.signature(Training).parameters
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name != "training":
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        parameters += [field.replace(annotation=shared[key]) for key, field in fields.items()]
    signature = inspect.Signature(
        [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]
    )

    def run(**given: Any) -> None:
        training = Training(**{name: given.pop(name) for name in fields if name in given})
        command(training=training, **given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return run
