"""`cglb paper`: the paper's experiments. The work is done in `cglb.experiments`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cglb.core.cache import use_compilation_cache
from cglb.data import datasets
from cglb.experiments import export, figures, kinds, report, runs, spec, table
from cglb.experiments.execute import Options, work
from cglb.experiments.watch import status_table, summary_line, watching
from cglb.experiments.workers import run_workers

__all__ = ["paper"]

paper = typer.Typer(
    help="The paper's experiments: make runs, show their progress, make a table and figures.",
    no_args_is_help=True,
)

Store = Annotated[
    Path,
    typer.Option(
        help="Folder of the runs.",
        envvar="CGLB_PAPER_STORE",
    ),
]
HERE = Path("paper-runs")


@paper.command("run")
def paper_run(
    data: Annotated[str, typer.Option(help="Data sets, with commas.")] = ",".join(spec.PAPER_DATA),
    methods: Annotated[str, typer.Option(help=f"With commas: {kinds.POSSIBLE}.")] = ",".join(
        kinds.PAPER_METHODS
    ),
    splits: Annotated[int, typer.Option(help="Number of splits, from 0.")] = spec.PAPER_SPLITS,
    split: Annotated[int | None, typer.Option(help="Only this split.")] = None,
    max_steps: Annotated[int, typer.Option(help="Optimiser steps per run.")] = spec.PAPER_STEPS,
    max_minutes: Annotated[
        float | None, typer.Option(help="Minutes of training per run, without metrics.")
    ] = None,
    fraction: Annotated[
        float, typer.Option(help="Share of the rows for training (0.64 for protein in the paper).")
    ] = spec.TWO_THIRDS,
    steps_per_round: Annotated[
        int, typer.Option(help="Steps between two selections of the inducing points.")
    ] = spec.STEPS_PER_ROUND,
    optimize_inducing: Annotated[
        bool,
        typer.Option(
            "--optimize-inducing",
            help="Optimise the inducing points by gradient, as in the paper, not in rounds.",
        ),
    ] = False,
    evaluate_every: Annotated[
        int, typer.Option(help="Steps between scores on the test part; 0: only at the end.")
    ] = 10,
    exact_every: Annotated[
        int,
        typer.Option(help="Steps between exact values by Cholesky, O(n³) each; 0: only at the end."),
    ] = 25,
    cholesky: Annotated[
        bool, typer.Option(help="Exact values by Cholesky at the learned hyperparameters: 8n² bytes.")
    ] = True,
    gain: Annotated[
        float,
        typer.Option(
            help=f"Stop when {spec.GAIN_STEPS} steps gained fewer nats; 0: only by training's own test."
        ),
    ] = 0.0,
    workers: Annotated[int, typer.Option(help="Number of processes, which share the cores.")] = 1,
    store: Store = HERE,
) -> None:
    """Make runs. Finished runs are read from the store; unfinished ones are resumed. Ctrl-C is safe: the
    same command resumes."""
    if workers < 1 or splits < 1:
        raise ValueError(f"--workers and --splits must be at least 1, found {workers} and {splits}.")
    options = Options(spec.Budget(max_steps, max_minutes, gain), evaluate_every, exact_every, cholesky)
    specs = spec.plan(
        spec.parse_data(data),
        kinds.parse_methods(methods),
        range(splits) if split is None else [split],
        fraction=fraction,
        steps_per_round=steps_per_round,
        optimize_inducing=optimize_inducing,
    )
    wanted = [runs.Run(store, one) for one in specs]
    left = [run for run in wanted if not runs.is_complete(run.metrics(), options.budget, cholesky)]
    console = Console(stderr=True)
    for name in dict.fromkeys(run.spec.data for run in left):
        if not datasets.available(name):
            datasets.load(name)  # before the runs start, since it may need the network
    for run in left:
        run.register(options.budget)
    trouble = []
    with watching(wanted, console):
        if workers == 1 and left:
            use_compilation_cache()
            work(left, options)
        elif left:
            trouble = run_workers(left, options, workers, store)
    _report(wanted, trouble, console)


def _report(wanted: list[runs.Run], trouble: list[str], console: Console) -> None:
    """Print which runs are not finished; exit code 1 if there are any."""
    states = [runs.look(run) for run in wanted]
    for line in trouble:
        console.print(line, style="red", highlight=False)
    for state in states:
        if state.active:
            console.print(f"Another process works on this run: {summary_line(state)}", highlight=False)
    unfinished = [state for state in states if state.phase in ("failed", "stopped", "waiting")]
    if unfinished:
        console.print(
            f"{len(unfinished)} of {len(wanted)} runs are not finished. The same command resumes them."
        )
        raise typer.Exit(1)


@paper.command("status")
def paper_status(store: Store = HERE) -> None:
    """Show all runs of a store with progress, bound, time used and time left, including those that other
    processes are working on."""
    found = _runs(store)
    Console().print(status_table(map(runs.look, found)))


@paper.command("table")
def paper_table(
    format: Annotated[str, typer.Option(help=f"One of {', '.join(table.FORMATS)}.")] = "markdown",
    output: Annotated[Path | None, typer.Option(help="A file instead of standard output.")] = None,
    store: Store = HERE,
) -> None:
    """Print Table 1 with the paper's values for comparison: medians over the finished splits."""
    if format not in table.FORMATS:
        raise ValueError(f"--format must be one of {', '.join(table.FORMATS)}, found {format!r}.")
    text = table.FORMATS[format](table.make(_runs(store)))
    if output is None:
        sys.stdout.write(text)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)


@paper.command("figures")
def paper_figures(
    output: Annotated[
        Path | None, typer.Option(help='A folder; by default "figures" in the store.')
    ] = None,
    store: Store = HERE,
) -> None:
    """Draw every figure of the paper for which the runs hold results, as SVG and PNG."""
    for path in figures.draw(_runs(store), output or store / "figures"):
        print(path)


@paper.command("report")
def paper_report(
    output: Annotated[
        Path | None, typer.Option(help='A folder; by default "report" in the store.')
    ] = None,
    store: Store = HERE,
) -> None:
    """Write one page with all results, results.md, and its figures."""
    print(report.write(_runs(store), output or store / "report"))


@paper.command("export")
def paper_export(
    output: Annotated[Path, typer.Option(help="The folder of the copy.")],
    store: Store = HERE,
) -> None:
    """Copy the finished runs of a store without checkpoints, small enough to be kept with code."""
    written = export.export(_runs(store), output)
    print(f"{len(written)} finished runs in {output}.")


def _runs(store: Path) -> list[runs.Run]:
    found = runs.find(store)
    if not found:
        raise ValueError(
            f"There are no runs in {store}. Make some with `cglb paper run`, or pass --store."
        )
    return found
