"""What a new user meets, in a process of its own: import, first fit, second fit, another number of rows.

Runs in each side's own environment: nothing is imported before it is timed.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
STEPS = 100  # of GPflow's optimiser; scikit-learn has its own limit


def fit_cglb(X, y):
    from cglb import GPRegressor

    return GPRegressor().fit(X, y)


def fit_sklearn(X, y):
    """The same model: Matérn-3/2 with a lengthscale per column, noise, a constant mean."""
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel() * Matern(np.ones(X.shape[1]), nu=1.5) + WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)


def fit_gpflow(X, y):
    import gpflow
    import numpy as np

    kernel = gpflow.kernels.Matern32(lengthscales=np.ones(X.shape[1]))
    model = gpflow.models.GPR((X, y[:, None]), kernel, mean_function=gpflow.functions.Constant())
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": STEPS}
    )
    return model


FITS = {"cglb": fit_cglb, "sklearn": fit_sklearn, "gpflow": fit_gpflow}


def seconds(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def rss_mb():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return None


class Programs:
    """Counts what JAX compiles."""

    def __init__(self):
        import jax

        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event, duration, **_):
        self.count += "backend_compile" in event


def run_fit(side, X, y, rows):
    """First fit with its imports, second fit, and one more row."""
    fit = FITS[side]
    found = {"first": seconds(lambda: fit(X[:rows], y[:rows]))}
    found["second"] = seconds(lambda: fit(X[:rows], y[:rows]))
    if side == "cglb":
        programs = Programs()
        found["another"] = seconds(lambda: fit(X[: rows + 1], y[: rows + 1]))
        found["programs"] = programs.count
    return found


def run_folds(side, X, y, rows):
    """Seven folds, twice: the second time is the warm one."""
    import numpy as np

    def folds():
        for fold in range(7):
            train = np.arange(rows) % 7 != fold
            model = FITS[side](X[:rows][train], y[:rows][train])
            model.predict(X[:rows][~train])

    return {"first": seconds(folds), "warm": seconds(folds)}


def run_memory(side, X, y, rows):
    """Memory after fits of as many sizes."""
    import numpy as np

    sizes = np.unique(np.linspace(50, 2000, rows).astype(int))
    np.random.default_rng(0).shuffle(sizes)
    curve = []
    took = seconds(lambda: [curve.append((FITS[side](X[:n], y[:n]), rss_mb())[1]) for n in sizes])
    return {"fits": len(sizes), "seconds": took, "mb": curve[:: max(1, len(curve) // 20)] + curve[-1:]}


def run_serve(side, X, y, rows):
    """Latencies of predictions at n rows and 512 inducing points, and memory for 100,000 rows."""
    import statistics

    import numpy as np

    from cglb import GPRegressor

    model = GPRegressor("cglb", num_inducing=512, max_steps=1, schedule="direct").fit(X[:rows], y[:rows])
    star = np.random.default_rng(1).normal(size=(100_000, X.shape[1])) * X.std(0) + X.mean(0)

    def latency(**options):
        model.predict(star[:1], **options)
        return statistics.median(
            seconds(lambda row=star[i : i + 1]: model.predict(row, **options)) for i in range(50)
        )

    found = {"mean_ms": 1e3 * latency(), "mean_std_ms": 1e3 * latency(return_std=True)}
    found["mean_sgpr_std_ms"] = 1e3 * latency(return_std=True, variance="sgpr")
    model.predict(star[:20_000])
    before = rss_mb()
    found["many_seconds"] = seconds(lambda: model.predict(star))
    found["many_more_mb"] = rss_mb() - before
    found["many_std_seconds"] = seconds(lambda: model.predict(star[:10_000], return_std=True))
    programs = Programs()
    for count in (2, 5, 33, 300, 1700):
        model.predict(star[:count], return_std=True)
    first = programs.count
    for count in (3, 6, 40, 310, 1720):
        model.predict(star[:count], return_std=True)
    found["programs_of_a_bucket"] = programs.count - first
    return found


TASKS = {"fit": run_fit, "folds": run_folds, "memory": run_memory, "serve": run_serve}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", choices=FITS, required=True)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--rows", type=int, required=True, help="rows, or fits for the task memory")
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    import numpy as np

    data = np.load(options.input)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = TASKS[options.task](options.side, data["X"], data["y"], options.rows)
    options.output.write_text(json.dumps(answer))
