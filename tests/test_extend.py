"""What a user adds in a file of their own: a kernel, a log-det bound, a preconditioner and a method.

Nothing in the package knows these classes. Each is used through `GPRegressor`: fit, predict, save, load.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import cglb
from cglb.bounds.logdet import LogdetBound
from cglb.core.parameters import parameter
from cglb.linalg.krylov import Preconditioner
from cglb.linalg.preconditioners import Preconditioning
from cglb.methods.base import Conditioned, Evaluation, Method, Prepared
from cglb.posteriors import Posterior

X, Y, _ = problems.data(n=40, d=2, m=8)
NEW = X[:7] + 0.1


class Inverse(cglb.Kernel):
    """1/(1 + r²/lengthscale²): a positive definite kernel that cglb does not have."""

    lengthscale: object = parameter(1.0)

    def between(self, F1, F2):
        r2 = jnp.sum((F1[:, None, :] - F2[None, :, :]) ** 2, axis=2)
        return 1.0 / (1.0 + r2 / self.lengthscale**2)

    def diag(self, X):
        return jnp.ones(X.shape[0], dtype=X.dtype)


class PaddedTrace(LogdetBound):
    """Titsias' bound and a nat more: valid, and not in the package."""

    key = "padded trace"

    def __call__(self, view):
        return view.logdet_Q + view.residual_trace / view.noise + 2.0


class Jacobi(Preconditioner):
    diagonal: jax.Array

    def __call__(self, R):
        return R / self.diagonal[:, None]


class JacobiPreconditioning(Preconditioning):
    name = "jacobi of the test"

    def build(self, system):
        BUILT.append("jacobi of the test")
        return Jacobi(system.gp.kernel.diag(system.X) + system.gp.noise)


BUILT: list[str] = []


class MeanPosterior(Posterior):
    """The prior with another mean: knows nothing of the inputs."""

    gp: cglb.GP
    level: jax.Array

    def _mean(self, X_star):
        return jnp.full(X_star.shape[0], self.level)

    def _variance(self, X_star):
        return self.gp.kernel.diag(X_star)

    def _explained(self, X_star):
        return jnp.zeros((X_star.shape[0], X_star.shape[0]))


@dataclass(frozen=True)
class Independent(Method, name="independent"):
    """log Π N(yᵢ; μ, k(xᵢ, xᵢ) + σ²): a likelihood of its own, without any covariance."""

    needs_points = False
    scale: float = 1.0

    def prepare(self, system):
        return Prepared("independent")

    def evaluate(self, prepared, system, y, v0=None, seed: Sequence[int] = (0,)):
        def terms(gp):
            variance = gp.kernel.diag(system.X) + gp.noise
            quadratic = self.scale * jnp.sum((y - gp.mean) ** 2 / variance)
            return cglb.bounds.BoundTerms.of(system.n, quadratic, jnp.sum(jnp.log(variance)))

        gp_bar = jax.grad(lambda gp: jnp.asarray(terms(gp).value))(system.gp)
        return Evaluation(terms(system.gp), gp_bar)

    def condition(self, system, y, v0=None):
        return Conditioned(MeanPosterior(system.gp, jnp.mean(y)))


def fitted(**settings):
    return cglb.GPRegressor(
        **{"method": "cglb", "num_inducing": 8, "max_steps": 4, "schedule": "direct", **settings}
    ).fit(X, Y)


def reloaded(model, path):
    model.save(path)
    return cglb.GPRegressor.load(path)


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": Inverse(0.8)},
        {"kernel": "inverse", "logdet": "chain"},
        {"logdet": "padded trace"},
        {"logdet": PaddedTrace()},
        {"precondition": "jacobi of the test"},
        {"precondition": JacobiPreconditioning()},
        {"method": "independent"},
        {"method": Independent(scale=1.0)},
    ],
    ids=lambda settings: ", ".join(f"{k}={type(v).__name__}" for k, v in settings.items()),
)
def test_an_extension_fits_predicts_and_comes_back_from_a_file(settings, tmp_path):
    model = fitted(**settings)
    again = reloaded(model, tmp_path / "model.cglb")
    assert type(again.gp_.kernel) is type(model.gp_.kernel)
    assert again.method_ == model.method_ or repr(again.method_) == repr(model.method_)
    for found, expected in zip(
        again.predict(NEW, return_std=True), model.predict(NEW, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_kernel_of_ones_own_learns_as_well_as_one_of_ours():
    own, ours = fitted(kernel=Inverse(1.0)), fitted(kernel="rational_quadratic")
    interval = own.evidence(exact=True)
    assert interval.width < 1e-4
    # 1/(1 + r²) is the rational quadratic with alpha = 1 at lengthscale 1/√2
    kernel = cglb.RationalQuadratic(float(own.gp_.kernel.lengthscale) / np.sqrt(2))
    twin = cglb.GP(kernel, own.gp_.noise, own.gp_.mean)
    _, inputs, targets, _, nats = own.in_model_units(X, Y)
    expected = float(cglb.bounds.exact(twin, inputs, targets).value) + nats
    assert interval.lower <= expected + 1e-6
    assert expected - 1e-6 <= interval.upper
    assert ours.score(X, Y) > 0.5
    assert own.score(X, Y) > 0.5


def test_a_bound_of_ones_own_is_what_training_maximises():
    ours, own = fitted(method="sgpr", logdet="trace"), fitted(method="sgpr", logdet="padded trace")
    assert own.history_[-1]["logdet_bound"] == "padded trace"
    assert own.fit_report_.bound == pytest.approx(ours.fit_report_.bound - 1.0, abs=1e-6)


def test_a_preconditioner_of_ones_own_is_what_cg_uses():
    BUILT.clear()
    fitted(precondition="jacobi of the test")
    assert BUILT


def test_a_method_of_ones_own_finds_its_own_optimum():
    """The maximum of Σ log N(yᵢ; μ, s²) over μ and s² is at the mean and variance of the targets."""
    model = fitted(method="independent", max_steps=50)
    total = float(model.gp_.noise) + float(model.gp_.kernel.variance)
    assert total == pytest.approx(1.0, rel=1e-3)  # standardised targets
    assert float(model.gp_.mean) == pytest.approx(0.0, abs=1e-3)
    np.testing.assert_allclose(model.predict(NEW), np.mean(Y))


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(ValueError, match=r"method must be one of .*independent"):
        fitted(method="nothing")
    with pytest.raises(ValueError, match=r"precondition must be one of .*jacobi of the test"):
        fitted(precondition="nothing")
    with pytest.raises(ValueError, match=r"logdet must be one of .*padded trace"):
        fitted(logdet="nothing")
