"""GPyTorch's iterative likelihood, and K v by KeOps or plain PyTorch, timed. See README.md."""

import contextlib
import importlib
import math
import os

import numpy as np
import protocol
import torch

SQRT3 = math.sqrt(3.0)


def as_tensors(problem):
    """torch tensors of the problem's arrays; the hyperparameters without axes stay floats."""
    return {k: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for k, a in problem.items()}


def exact_gp(t):
    """GPyTorch's exact GP at the problem's hyperparameters, and its likelihood."""
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, X, y, likelihood):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1])
            self.covar_module = gpytorch.kernels.ScaleKernel(matern)

        def forward(self, X):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    X, y = t["X"], t["y"]
    # GPyTorch's own floor on the noise, 1e-4, would refuse the smaller values we may be given.
    constraint = gpytorch.constraints.GreaterThan(1e-8)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=constraint)
    model = Model(X, y, likelihood).to(X.dtype)
    model.mean_module.initialize(constant=t["mean"])
    model.covar_module.initialize(outputscale=t["variance"])
    model.covar_module.base_kernel.initialize(lengthscale=t["lengthscale"])
    likelihood.initialize(noise=t["noise"])
    return model, likelihood


@contextlib.contextmanager
def wang_settings():
    """The setting of Wang et al. (2019)."""
    from gpytorch import settings as s

    # without the third line no preconditioner is used below 2,000 rows
    with (
        s.max_cholesky_size(0),
        s.max_preconditioner_size(100),
        s.min_preconditioning_size(1),
        s.num_trace_samples(10),
        s.cg_tolerance(1.0),
        s.eval_cg_tolerance(0.01),
        s.max_root_decomposition_size(100),
    ):
        yield


def iterative(problem, args):
    """The log marginal likelihood by CG, Lanczos and 10 probes, and its gradient by autograd."""
    import gpytorch

    t = as_tensors(problem)
    X, y, n = t["X"], t["y"], len(t["y"])
    model, likelihood = exact_gp(t)
    model.train(), likelihood.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def value_and_gradient():
        model.zero_grad()
        value = n * objective(model(X), y)  # GPyTorch divides by n
        value.backward()
        return value.item()

    with wang_settings():
        results, times, first = protocol.measure(value_and_gradient, args.repeats)
    gradient = {
        "noise": natural_gradient(likelihood.noise_covar, "noise"),
        "variance": natural_gradient(model.covar_module, "outputscale"),
        "lengthscale": natural_gradient(model.covar_module.base_kernel, "lengthscale"),
        "mean": model.mean_module.constant.grad.numpy(),
    }
    return times, first, {"values": results, "gradient": gradient}


def predict(problem, args):
    """Mean and variance (LOVE) of the latent function at `X_test`, saved to --result."""
    import gpytorch

    t = as_tensors(problem)
    model, likelihood = exact_gp(t)

    def mean_and_variance():
        model.train(), likelihood.train()  # drops what the last prediction kept
        model.eval(), likelihood.eval()
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            found = model(t["X_test"])
            return found.mean, found.variance

    with wang_settings():
        results, times, first = protocol.measure(mean_and_variance, args.repeats)
    mean, variance = results[-1]
    if args.result is not None:
        np.savez(args.result, mean=mean.numpy(), variance=variance.numpy())
    return times, first, {"values": [mean.norm().item() for mean, _ in results]}


def natural_gradient(module, name):
    """GPyTorch holds raw values; divide by d natural / d raw."""
    raw = getattr(module, "raw_" + name)
    natural = getattr(module, f"raw_{name}_constraint").transform(raw)
    (slope,) = torch.autograd.grad(natural.sum(), raw)
    return (raw.grad / slope).squeeze().numpy()


def right_hand_side(t):
    return t["V"] if "V" in t else t["v"][:, None]


def product_keops(problem, args):
    from pykeops.torch import LazyTensor

    t = as_tensors(problem)
    X, V = t["X"] / t["lengthscale"], right_hand_side(t)
    rows, columns = LazyTensor(X[:, None, :].contiguous()), LazyTensor(X[None, :, :].contiguous())
    r = (3.0 * ((rows - columns) ** 2).sum(-1)).sqrt()
    # The variance is outside the sum: one multiplication fewer for each entry of K.
    profile = (1.0 + r) * (-r).exp()
    times, first, extra = products(lambda: t["variance"] * (profile @ V), args)
    # KeOps compiles with these, and they matter: as shipped it makes code for any x86-64.
    return times, first, {**extra, "cxxflags": os.environ.get("CXXFLAGS", "")}


def product_torch(problem, args):
    t = as_tensors(problem)
    X, V = t["X"] / t["lengthscale"], right_hand_side(t)

    def product():
        parts = []
        for rows in X.split(args.chunk):
            r = SQRT3 * torch.cdist(rows, X)
            parts.append(((1.0 + r) * torch.exp(-r)) @ V)
        return t["variance"] * torch.cat(parts)

    return products(product, args)


def products(function, args):
    with torch.no_grad():
        results, times, first = protocol.measure(function, args.repeats)
    if args.result is not None:
        np.savez(args.result, result=results[-1].numpy())
    return times, first, {"values": [product.double().norm().item() for product in results]}


TASKS = {
    "iterative": (iterative, "gpytorch"),
    "predict": (predict, "gpytorch"),
    "product_keops": (product_keops, "pykeops"),
    "product_torch": (product_torch, None),
}


def add_options(parser):
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--chunk", type=int, default=250, help="rows of K at once, product_torch")
    parser.add_argument("--result", help="npz to save a product ('result') or a prediction in")
    parser.add_argument("--seed", type=int, default=0, help="of the probes, iterative")


def main():
    args = protocol.parse(__doc__, list(TASKS), add_options)
    torch.manual_seed(args.seed)
    function, library = TASKS[args.task]
    versions = {"torch": torch.__version__}
    if library is not None:  # before the baseline, as imports are no part of the task's memory
        versions[library] = importlib.import_module(library).__version__
    problem = protocol.load(args.input, np.dtype(args.dtype))
    baseline = protocol.current_rss()
    times, first, extra = function(problem, args)
    protocol.write(
        args,
        baseline=baseline,
        times=times,
        first=first,
        versions=versions,
        dtype=args.dtype,
        threads=torch.get_num_threads(),
        **extra,
    )


if __name__ == "__main__":
    main()
