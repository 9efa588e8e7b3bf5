"""Iterative GP: agreement with GPyTorch, CG steps compared with CGLB's, and (in)stability.

    python benchmarks/iterative.py agreement --data pol --rows 10000
    python benchmarks/iterative.py cg-steps --data bike --steps 200
    python benchmarks/iterative.py instability --data bike --steps 2020 --max-seconds 3600

`agreement` needs the environment that `make peers` builds. Results are JSON in benchmarks/results. The
last two commands also draw; with --draw-only they only read the JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import iterative_plots as plots
import numpy as np
from common import RESULTS, machine, standardised, write

import cglb
from cglb.data import metrics
from cglb.methods.estimates import estimate
from cglb.posteriors import iterative

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
# estimates of log p overlap if their means differ by at most this many standard deviations
OVERLAP = 2.0


def start(X: np.ndarray) -> cglb.GP:
    return cglb.GP(cglb.Matern32(np.ones(X.shape[1])))


# ---- agreement ----


def torch(python: Path, task: str, inputs: Path, folder: Path, repeats: int) -> tuple[dict, Path]:
    output, result = folder / f"{task}.json", folder / f"{task}.npz"
    command = [str(python), str(HERE / "peers" / "run_torch.py"), "--task", task, "--input", str(inputs)]
    command += ["--output", str(output), "--result", str(result), "--repeats", str(repeats)]
    subprocess.run(command, check=True)
    return json.loads(output.read_text()), result


def summary(values: list[float]) -> dict:
    return {"values": values, "mean": float(np.mean(values)), "sd": float(np.std(values, ddof=1))}


def agreement(options: argparse.Namespace) -> dict:
    """Compare both libraries at the same hyperparameters, near those of a trained model."""
    X, y, X_test, y_test = standardised(options.data, options.rows, options.seed)
    lengthscale = 4.0 * np.linspace(0.8, 1.2, X.shape[1])
    gp = cglb.GP(cglb.Matern32(lengthscale, 1.2), 0.05, 0.1)
    natural = {"lengthscale": lengthscale, "variance": 1.2, "noise": 0.05, "mean": 0.1}
    with tempfile.TemporaryDirectory() as name:
        inputs = Path(name) / "in.npz"
        np.savez(inputs, X=X, y=y, X_test=X_test, **natural)
        peer, _ = torch(options.torch_python, "iterative", inputs, Path(name), options.repeats)
        _, path = torch(options.torch_python, "predict", inputs, Path(name), 1)
        with np.load(path) as file:
            peer_mean, peer_variance = file["mean"], file["variance"]
    # GPyTorch always takes at least 21 steps, to fill the matrices of its quadrature
    ways = {
        "as GPyTorch (21 steps)": cglb.Iterative(cg_min_steps=21),
        "at least 10 steps": cglb.Iterative(cg_min_steps=10),
        "tolerance 0.01": cglb.Iterative(cg_tolerance=0.01),
    }
    lml = {"GPyTorch": summary(peer["values"])}
    for way, settings in ways.items():
        found = [estimate(settings, gp, X, y, seed) for seed in range(options.repeats)]
        lml[way] = summary([e.value for e in found])
        lml[way] |= {"spread": [e.spread for e in found], "cg_steps": [e.cg_steps for e in found]}
    if options.exact:
        lml["exact"] = {"mean": float(cglb.bounds.exact(gp, X, y).value)}
    ours = iterative.condition(gp, X, y).posterior
    noise = natural["noise"]
    predictions = {
        side: {
            "rmse": metrics.rmse(y_test, mean),
            "nlpd": metrics.nlpd(y_test, mean, variance + noise),
        }
        for side, mean, variance in (
            ("GPyTorch", peer_mean, peer_variance),
            ("cglb", ours.mean(X_test), ours.variance(X_test)),
        )
    }
    a, b = lml["GPyTorch"], lml["as GPyTorch (21 steps)"]
    ratio = predictions["cglb"]["rmse"] / predictions["GPyTorch"]["rmse"]
    return {
        "rows": len(y),
        "lml": lml,
        "predictions": predictions,
        "seconds_gpytorch": peer["times"],
        "lml_overlap": bool(abs(a["mean"] - b["mean"]) <= OVERLAP * np.hypot(a["sd"], b["sd"])),
        "rmse_ratio": ratio,
        "rmse_within_1_percent": bool(abs(ratio - 1.0) <= 0.01),
    }


def show_agreement(result: dict) -> None:
    for side, found in result["lml"].items():
        print(
            f"{side:24s} LML {found['mean']:12.2f}" + (f" ± {found['sd']:.2f}" if "sd" in found else "")
        )
    for side, found in result["predictions"].items():
        print(f"{side:24s} RMSE {found['rmse']:.5f}, NLPD {found['nlpd']:.4f}")
    print(f"LML estimates overlap: {result['lml_overlap']}; RMSE ratio {result['rmse_ratio']:.4f}")


# ---- CG steps per evaluation ----


def steps_of(fit: cglb.Fit) -> dict:
    """CG steps of every evaluation; those of a line search get the time of the resulting step."""
    rows = fit.history
    return {
        "steps": [s for row in rows for s in row["cg_steps_by_evaluation"]],
        "seconds": [row["seconds"] for row in rows for _ in row["cg_steps_by_evaluation"]],
        "rows": [row["rows"] for row in rows for _ in row["cg_steps_by_evaluation"]],
        "bound": [row["bound"] for row in rows],
        "stop": fit.stop,
        "training_seconds": fit.seconds,
    }


def cg_steps(options: argparse.Namespace) -> dict:
    X, y, _, _ = standardised(options.data, options.rows, options.seed)
    shared = {"max_steps": options.steps, "max_seconds": options.max_seconds, "callback": tell}
    print("CGLB", flush=True)
    bound = cglb.train(
        start(X),
        X,
        y,
        cglb.CGLB(logdet="amgm", precondition=options.precondition),
        num_inducing=options.inducing,
        optimize_inducing=options.optimize_inducing,
        seed=options.seed,
        **shared,
    )
    print("Iterative GP", flush=True)
    settings = cglb.Iterative(cg_min_steps=options.min_steps)
    baseline = cglb.train(start(X), X, y, settings, seed=options.seed, **shared)
    result = {"n": len(y), "CGLB": steps_of(bound), "Iterative GP": steps_of(baseline)}
    later = np.array(result["CGLB"]["steps"][30:])
    result["share_at_most_one"] = float(np.mean(later <= 1)) if len(later) else None
    return result


def show_cg_steps(result: dict) -> None:
    for side in ("CGLB", "Iterative GP"):
        steps = result[side]["steps"]
        print(
            f"{side}: {len(steps)} evaluations, median {np.median(steps):g}, most {max(steps)} CG steps"
        )
    share = result["share_at_most_one"]
    if share is None:
        print("CGLB had no more than 30 evaluations.")
    else:
        print(f"CGLB evaluations after the first 30 with at most one CG step: {share:.1%}")


# ---- stability ----


def instability(options: argparse.Namespace) -> dict:
    """Train with every learning rate and noise floor; keep runs that are already in the JSON file."""
    X, y, X_test, y_test = standardised(options.data, options.rows, options.seed)
    known = json.loads(options.json.read_text()) if options.json.exists() else {}
    runs = known.get("runs", {}) if known.get("settings") == settings_of(options) else {}
    for rate in options.rates:
        for floor in options.floors:
            name = f"rate {rate:g}, floor {floor:g}"
            if name in runs:
                continue
            print(name, flush=True)
            points: list[dict] = []

            def look(row, current, points=points):
                tell(row, current)
                if row["step"] % options.every and row["step"] != options.steps:
                    return
                gp = current().gp
                solution, found = iterative.condition(gp, X, y, rank=1)
                point = {"step": row["step"], "rmse": metrics.rmse(y_test, found.mean(X_test))}
                point |= {"cg_steps": solution.steps, "cg_stop": solution.stop.value}
                if options.exact:
                    point["exact"] = float(cglb.bounds.exact(gp, X, y).value)
                points.append(point)
                print(f"     RMSE {point['rmse']:.4f}", flush=True)

            fit = cglb.train(
                start(X),
                X,
                y,
                cglb.Iterative(cg_min_steps=options.min_steps, rate=rate),
                floor={"kernel": 1e-6, "noise": floor},
                max_steps=options.steps,
                max_seconds=options.max_seconds,
                seed=options.seed,
                callback=look,
            )
            kept = ("step", "round", "rows", "bound", "spread", "cg_steps", "seconds")
            history = [{key: row[key] for key in kept} for row in fit.history]
            for row, full in zip(history, fit.history, strict=True):
                row["noise"] = full["parameters"]["noise"]
            runs[name] = {"rate": rate, "floor": floor, "history": history, "points": points}
            runs[name] |= {"stop": fit.stop, "message": fit.message}
            write(options.json, {"settings": settings_of(options), "n": len(y), "runs": runs})
    return {"n": len(y), "runs": runs}


def show_instability(result: dict) -> None:
    for name, run in result["runs"].items():
        rmse = [point["rmse"] for point in run["points"]]
        noise = run["history"][-1]["noise"]
        print(f"{name}: {len(run['history'])} steps ({run['stop']}), noise {noise:.2e}", end="")
        print(f", RMSE at best {min(rmse):.4f}, at the end {rmse[-1]:.4f}" if rmse else "")


# ---- shared ----


def tell(row: dict, _: object) -> None:
    spread = "" if row["spread"] is None else f" ± {row['spread']:.1f}"
    print(
        f"{row['step']:5d} {row['bound']:12.2f}{spread} {row['cg_steps']:4d} CG {row['seconds']:8.1f} s "
        f"noise {row['parameters']['noise']:.2e}",
        flush=True,
    )


def settings_of(options: argparse.Namespace) -> dict:
    skipped = ("json", "plot", "torch_python", "draw_only", "rates", "floors")
    return {key: value for key, value in vars(options).items() if key not in skipped}


COMMANDS = {  # name: (run, show, draw)
    "agreement": (agreement, show_agreement, None),
    "cg-steps": (cg_steps, show_cg_steps, plots.draw_cg_steps),
    "instability": (instability, show_instability, plots.draw_instability),
}


def parse() -> argparse.Namespace:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--data", default="pol")
    shared.add_argument("--rows", type=int, default=None, help="number of training rows; by default all")
    shared.add_argument("--seed", type=int, default=0)
    shared.add_argument("--steps", type=int, default=200)
    shared.add_argument("--min-steps", type=int, default=10, help="of CG, in training Iterative GP")
    shared.add_argument("--max-seconds", type=float, default=None, help="time limit of each training")
    shared.add_argument("--exact", action="store_true", help="also the exact log marginal likelihood")
    shared.add_argument("--json", type=Path, default=None)
    shared.add_argument("--plot", type=Path, default=None)
    shared.add_argument("--draw-only", action="store_true", help="only draw what is in the JSON file")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("agreement", parents=[shared])
    command.add_argument("--repeats", type=int, default=8, help="number of calls, each with new probes")
    python = HERE / ".venvs" / "torch" / "bin" / "python"
    command.add_argument("--torch-python", type=Path, default=python)
    command = commands.add_parser("cg-steps", parents=[shared])
    command.add_argument("--inducing", type=int, default=1024)
    command.add_argument("--precondition", default="nystrom", help="of CGLB; nystrom in the paper")
    command.add_argument("--optimize-inducing", action="store_true", help="of CGLB, as in the paper")
    command.set_defaults(plot=IMAGES / "cg-steps.png")
    command = commands.add_parser("instability", parents=[shared])
    command.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.01])
    command.add_argument("--floors", type=float, nargs="+", default=[1e-4, 1e-6])
    command.add_argument("--every", type=int, default=25, help="steps between two test errors")
    command.set_defaults(plot=IMAGES / "iterative-grid.png", steps=2020)
    options = parser.parse_args()
    options.json = options.json or RESULTS / f"iterative-{options.command}-{options.data}.json"
    return options


def main() -> None:
    options = parse()
    run, show, draw = COMMANDS[options.command]
    if options.draw_only:
        result = json.loads(options.json.read_text())
    else:
        if options.command == "agreement" and not options.torch_python.exists():
            sys.exit(f"{options.torch_python} does not exist: run `make peers` or pass --torch-python.")
        result = {"settings": settings_of(options), **run(options), "machine": machine()}
        write(options.json, result)
    show(result)
    if draw is not None:
        draw(result, options.plot)


if __name__ == "__main__":
    main()
