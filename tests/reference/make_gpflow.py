"""Make gpflow.json: reference numbers from GPflow's GPR, SGPR and CGLB on small synthetic data.

Run it where GPflow is installed (the pins are the ones of the benchmarks), from the repository:

    python3 -m venv benchmarks/.venvs/gpflow
    benchmarks/.venvs/gpflow/bin/pip install -r benchmarks/peers/requirements-gpflow.txt
    benchmarks/.venvs/gpflow/bin/python tests/reference/make_gpflow.py

What a case holds, with e = y - mean and K_hat = K + noise I (all float64):

exact           GPR: log_marginal_likelihood() and its gradient.
sgpr            SGPR: elbo(), its terms and its gradient; upper_bound() (Titsias 2014: the largest
                eigenvalue of K - Q bounded by its trace).
cglb.zero       CGLB at v = 0,
cglb.random     at the data set's v, far from the solution,
cglb.cg         at the v where GPflow's own CG stops, from v = 0, by 0.5 r'Q_hat^-1 r <= 1; v is
                stored beside the value.

Each has predict_f at Xs too: mean, var (its diagonal) and, but for CGLB, the full cov. They are of
the latent function: no noise is added.

CGLB is made with v_grad_optimization=True and v assigned by hand. GPflow then takes v as it is and
runs no CG, so value and gradient are those of a fixed v, and the gradient by v comes with them.
It predicts by predict_f with cg_tolerance=None, which uses that v too (the default runs CG again).

Every gradient is for the natural values: each parameter is put in with the identity as transform.
Terms are signed so that value = constant + quadratic + logdet.
"""

import json
import re
from pathlib import Path

import gpflow
import numpy as np
import tensorflow as tf

# GPflow adds this to the diagonal of Kuu. Its default, 1e-6, would hide errors above 1e-7.
JITTER = 1e-12
KERNELS = ("SquaredExponential", "Matern12", "Matern32", "Matern52", "RationalQuadratic")
ALPHA = 1.7  # of RationalQuadratic


def make_dataset(seed, lengthscale, variance, noise, mean, n=60, m=8, n_test=7):
    """Inputs in a cube, a smooth function with noise, and Z near (not at) some of the inputs."""
    rng = np.random.default_rng(seed)
    d = len(lengthscale)
    X = rng.uniform(-2.0, 2.0, size=(n, d))
    y = mean + np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] + np.sqrt(noise) * rng.standard_normal(n)
    Z = X[rng.choice(n, m, replace=False)] + 0.1 * rng.standard_normal((m, d))
    Xs = rng.uniform(-2.5, 2.5, size=(n_test, d))
    v = 0.3 * rng.standard_normal(n)
    hyper = {"lengthscale": lengthscale, "variance": variance, "noise": noise, "mean": mean}
    return {"seed": seed, "X": X, "y": y, "Z": Z, "Xs": Xs, "v": v, "hyperparameters": hyper}


def make_kernel(name, hyper):
    # A Parameter without a transform is its own natural value, and so is its gradient.
    kernel = getattr(gpflow.kernels, name)(lengthscales=hyper["lengthscale"])
    kernel.variance = gpflow.Parameter(hyper["variance"])
    kernel.lengthscales = gpflow.Parameter(hyper["lengthscale"])
    if name == "RationalQuadratic":
        kernel.alpha = gpflow.Parameter(ALPHA)
    return kernel


def make_model(cls, kernel_name, data, **settings):
    hyper = data["hyperparameters"]
    model = cls(
        (data["X"], data["y"][:, None]),
        kernel=make_kernel(kernel_name, hyper),
        mean_function=gpflow.functions.Constant(hyper["mean"]),
        **settings,
    )
    model.likelihood.variance = gpflow.Parameter(hyper["noise"])
    return model


def value_and_gradient(model, objective):
    parameters = {
        "noise": model.likelihood.variance,
        "variance": model.kernel.variance,
        "lengthscale": model.kernel.lengthscales,
        "mean": model.mean_function.c,
    }
    if hasattr(model.kernel, "alpha"):
        parameters["alpha"] = model.kernel.alpha
    if hasattr(model, "inducing_variable"):
        parameters["Z"] = model.inducing_variable.Z
    if hasattr(model, "aux_vec"):
        parameters["v"] = model.aux_vec
    variables = {key: p.unconstrained_variable for key, p in parameters.items()}
    with tf.GradientTape() as tape:
        value = objective()
    gradient = {key: g.numpy() for key, g in tape.gradient(value, variables).items()}
    if "v" in gradient:
        gradient["v"] = gradient["v"][0]
    return {"value": value.numpy(), "gradient": gradient}


def terms(model):
    common = model._common_calculation()
    return {
        "constant": -0.5 * len(model.data[0]) * np.log(2.0 * np.pi),
        "quadratic": model.quad_term(common).numpy(),
        "logdet": model.logdet_term(common).numpy(),
    }


def predict(model, Xs, full_cov=True, **settings):
    mean, var = model.predict_f(Xs, **settings)
    result = {"mean": mean.numpy()[:, 0], "var": var.numpy()[:, 0]}
    if full_cov:
        result["cov"] = model.predict_f(Xs, full_cov=True, **settings)[1].numpy()[0]
    return result


def cglb_at(v, kernel_name, data):
    Z = data["Z"]
    model = make_model(
        gpflow.models.CGLB, kernel_name, data, inducing_variable=Z, v_grad_optimization=True
    )
    model.aux_vec.assign(v[None, :])
    return {
        **value_and_gradient(model, model.elbo),
        "terms": terms(model),
        "predict": predict(model, data["Xs"], full_cov=False, cg_tolerance=None),
    }


def v_by_cg(kernel_name, data):
    model = make_model(gpflow.models.CGLB, kernel_name, data, inducing_variable=data["Z"])
    model.elbo()  # runs CG from v = 0 and keeps the v it ends with
    return model.aux_vec.numpy()[0]


def make_case(kernel_name, dataset_name, data):
    gpr = make_model(gpflow.models.GPR, kernel_name, data)
    sgpr = make_model(gpflow.models.SGPR, kernel_name, data, inducing_variable=data["Z"])
    v_cg = v_by_cg(kernel_name, data)
    return {
        "kernel": kernel_name,
        "alpha": ALPHA if kernel_name == "RationalQuadratic" else None,
        "dataset": dataset_name,
        "exact": {
            **value_and_gradient(gpr, gpr.log_marginal_likelihood),
            "predict": predict(gpr, data["Xs"]),
        },
        "sgpr": {
            **value_and_gradient(sgpr, sgpr.elbo),
            "terms": terms(sgpr),
            "upper_bound": sgpr.upper_bound().numpy(),
            "predict": predict(sgpr, data["Xs"]),
        },
        "cglb": {
            "zero": cglb_at(np.zeros_like(v_cg), kernel_name, data),
            "random": cglb_at(data["v"], kernel_name, data),
            "cg": {"v": v_cg, **cglb_at(v_cg, kernel_name, data)},
        },
    }


def to_json(tree):
    """Indented, but a list of numbers on one line; floats as repr, so they read back the same."""
    text = json.dumps(tree, indent=1, default=lambda array: array.tolist())
    return re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match[0].split()), text) + "\n"


def main():
    gpflow.config.set_default_jitter(JITTER)
    datasets = {
        "d2": make_dataset(1, [0.8, 1.3], variance=1.4, noise=0.1, mean=0.3),
        "d3": make_dataset(2, [0.9, 1.2, 1.7], variance=0.7, noise=0.01, mean=-0.6),
    }
    reference = {
        "made_by": "tests/reference/make_gpflow.py",
        "versions": {m.__name__: m.__version__ for m in (gpflow, tf, np)},
        "jitter": JITTER,
        "datasets": datasets,
        "cases": [make_case(k, name, data) for name, data in datasets.items() for k in KERNELS],
    }
    Path(__file__).with_name("gpflow.json").write_text(to_json(reference))


if __name__ == "__main__":
    main()
