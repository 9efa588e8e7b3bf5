"""A value and gradient of GPflow's SGPR or CGLB, timed, or a fit. See README.md for the protocol.

The gradient is for the natural hyperparameters and for Z: every parameter is put in without a
transform. As shipped otherwise; in particular CGLB makes K whole.
"""

import contextlib
import os
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gpflow
import numpy as np
import protocol
import tensorflow as tf


def make_model(cls, problem, **settings):
    kernel = gpflow.kernels.Matern32(lengthscales=problem["lengthscale"])
    kernel.lengthscales = gpflow.Parameter(problem["lengthscale"])
    kernel.variance = gpflow.Parameter(problem["variance"])
    model = cls(
        (problem["X"], problem["y"][:, None]),
        kernel=kernel,
        inducing_variable=problem["Z"],
        mean_function=gpflow.functions.Constant(problem["mean"]),
        **settings,
    )
    model.likelihood.variance = gpflow.Parameter(problem["noise"])
    return model


def make_objective(model):
    parameters = {
        "noise": model.likelihood.variance,
        "variance": model.kernel.variance,
        "lengthscale": model.kernel.lengthscales,
        "mean": model.mean_function.c,
        "Z": model.inducing_variable.Z,
    }
    variables = {key: p.unconstrained_variable for key, p in parameters.items()}

    def value_and_gradient():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            value = model.elbo()
        return value, tape.gradient(value, variables)

    return value_and_gradient


def run(objective, repeats):
    def call():
        value, gradient = objective()
        return value.numpy(), {key: g.numpy() for key, g in gradient.items()}

    return protocol.measure(call, repeats)


def sgpr(problem, args):
    objective = make_objective(make_model(gpflow.models.SGPR, problem))
    return run(tf.function(objective), args.repeats), {"mode": "tf.function"}


def cglb(problem, args):
    """CGLB from a warm v. GPflow runs CG until 0.5 r'Q_hat^-1 r <= 1: with a good v, no step."""
    model = make_model(gpflow.models.CGLB, problem)
    objective = make_objective(model)
    notes = {"mode": "tf.function"}
    model.aux_vec.assign(problem["v"][None, :])
    try:
        found = run(tf.function(objective), args.repeats)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        reasons = re.findall(r"^ *(\w+Error: .*)$", str(error), re.MULTILINE)
        notes = {"mode": "eager", "tf_function_error": reasons[-1] if reasons else repr(error)}
        model.aux_vec.assign(problem["v"][None, :])
        found = run(objective, args.repeats)
    # Not zero if v was too far off for GPflow, and CG's steps were timed too.
    notes["v_moved_by"] = float(np.max(np.abs(model.aux_vec.numpy()[0] - problem["v"])))
    return found, notes


def cglb_fixed(problem, args):
    """CGLB at v as given: without GPflow's CG loop, tf.function takes it. The best it can do."""
    model = make_model(gpflow.models.CGLB, problem, v_grad_optimization=True)
    model.aux_vec.assign(problem["v"][None, :])
    return run(tf.function(make_objective(model)), args.repeats), {"mode": "tf.function"}


class TimeIsUp(Exception):
    """Raised from the optimiser's callback."""


def fit(cls, compiled):
    """Training as GPflow's manual does it: SciPy's L-BFGS-B on everything, Z included, from 1."""

    def task(problem, args):
        columns = problem["X"].shape[1]
        model = cls(
            (problem["X"], problem["y"][:, None]),
            kernel=gpflow.kernels.Matern32(lengthscales=np.ones(columns)),
            inducing_variable=problem["Z"],
            mean_function=gpflow.functions.Constant(0.0),
        )
        history, clock = [], protocol.Clock()

        def step(number, variables, values):
            clock.stop()
            row = {"step": number, "seconds": clock.seconds}
            if number % args.every == 0:
                row["bound"] = float(model.elbo().numpy())
                mean, variance = (a.numpy()[:, 0] for a in model.predict_y(problem["X_test"]))
                row |= protocol.scores(problem["y_test"], mean, variance)
                history.append(row)
            if clock.seconds > args.max_seconds:
                raise TimeIsUp
            clock.start()

        clock.start()
        with contextlib.suppress(TimeIsUp):
            gpflow.optimizers.Scipy().minimize(
                model.training_loss,
                model.trainable_variables,
                compile=compiled,
                step_callback=step,
                options={"maxiter": args.steps},
            )
        first = history[0]["seconds"] if history else float("nan")
        return ([(row["bound"], {}) for row in history], [clock.seconds], first), {"history": history}

    return task


TASKS = {
    "sgpr": sgpr,
    "cglb": cglb,
    "cglb_fixed": cglb_fixed,
    "fit_sgpr": fit(gpflow.models.SGPR, True),
    "fit_cglb": fit(gpflow.models.CGLB, False),
}


def add_options(parser):
    parser.add_argument("--jitter", type=float, default=1e-6, help="on Kuu's diagonal")
    parser.add_argument("--steps", type=int, default=1000, help="of a fit")
    parser.add_argument("--max-seconds", type=float, default=300.0, help="of a fit, without scoring")
    parser.add_argument("--every", type=int, default=5, help="steps between scores of a fit")


def main():
    args = protocol.parse(__doc__, list(TASKS), add_options)
    gpflow.config.set_default_jitter(args.jitter)
    problem = protocol.load(args.input)
    baseline = protocol.current_rss()
    (results, times, first), notes = TASKS[args.task](problem, args)
    protocol.write(
        args,
        baseline=baseline,
        times=times,
        first=first,
        versions={"gpflow": gpflow.__version__, "tensorflow": tf.__version__},
        threads=tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count(),
        jitter=args.jitter,
        values=[float(value) for value, _ in results],
        gradient=results[-1][1],
        **notes,
    )


if __name__ == "__main__":
    main()
