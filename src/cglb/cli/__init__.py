"""The command line: parse, call, print. Each command imports what it needs when it runs."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from cglb.cli import asking, fitting, predicting, reporting
from cglb.cli.paper import paper
from cglb.core.errors import DatasetError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Gaussian process regression with bounds you can trust.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    fitting.fit,
    predicting.predict,
    asking.evidence,
    fitting.compare,
    reporting.report,
    asking.info,
    reporting.demo,
):
    app.command()(command)
app.add_typer(paper, name="paper")


def _version(asked: bool) -> bool:
    if asked:
        from cglb import __version__

        print(f"cglb {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module first, such as one with kernels of your own; from the current folder "
            "or the path of Python. Its code is run.",
        ),
    ] = None,
) -> None:
    """Gaussian process regression with bounds you can trust.

    Exit codes: 0 if all went well; 1 if the answer is not what was asked for (interrupted, or a
    tolerance not reached); 2 if an argument or a file cannot be used.
    """
    if modules:
        sys.path.insert(0, str(Path.cwd()))  # the script is elsewhere
    for name in modules or []:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ValueError(f"--import {name}: {error}.") from None


def main() -> None:
    """Run the program. What a user can mend prints one line on standard error and gives exit code 2."""
    try:
        app()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (ValueError, DatasetError, OSError, MemoryError, np.linalg.LinAlgError) as error:
        words = f"Error: {error or type(error).__name__}"
        Console(stderr=True).print(words, style="red", highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(2) from None
