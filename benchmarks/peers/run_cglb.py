"""This package's side of the comparison, by the same protocol as the peers, in a process of its own.

sgpr: ELBO and gradient; cglb: the paper's bound at the given v; chain: the chain bound at v; each for
all hyperparameters and Z. product: K v.
"""

import jax
import jax.numpy as jnp
import numpy as np
import protocol

import cglb
from cglb import CGLB, SGPR
from cglb.bounds.logdet import Chain
from cglb.linalg.operator import KernelOperator


def objective(task, data, tolerance, blocks):
    """A call that gives (value, gradient in hyperparameters and Z) at fixed (θ, Z, v)."""
    gp = cglb.GP(cglb.Matern32(data["lengthscale"], data["variance"]), data["noise"], data["mean"])
    gp = jax.tree.map(jnp.asarray, gp)
    X, y, Z, v = (jnp.asarray(data[name]) for name in ("X", "y", "Z", "v"))
    settings = {
        "sgpr": SGPR("trace"),
        "cglb": CGLB("amgm", tolerance, precondition="nystrom"),
        "chain": CGLB(Chain(*blocks), tolerance),
    }[task]
    prepared = settings.prepare(settings.system(gp, X, Z))

    def call():
        found = settings.evaluate(prepared, settings.system(gp, X, Z, prepared), y, v)
        assert found is not None
        jax.block_until_ready((found.gp_bar, found.Z_bar))
        return found.value, {"noise": float(found.gp_bar.noise), "cg_steps": found.cg_steps}

    return call


def product(data, dtype):
    gp = cglb.GP(cglb.Matern32(data["lengthscale"], data["variance"]), data["noise"], data["mean"])
    operator = KernelOperator.of(gp, jnp.asarray(data["X"]), dtype)
    v = jnp.asarray(data["v"], dtype=dtype)
    result = []

    def call():
        result[:] = [np.asarray(jax.block_until_ready(operator @ v)) - data["noise"] * data["v"]]
        # not np.linalg.norm: the threads of its BLAS would wait in a loop during the next call
        return float(np.sqrt(np.sum(result[0] ** 2))), {}

    return call, result


def add_options(parser):
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--result", default=None)
    parser.add_argument("--no-cg", action="store_true", help="take v as it is")
    parser.add_argument("--blocks", type=int, nargs=2, default=(), help="rows and neighbours of a block")


def main():
    options = protocol.parse(__doc__, ["sgpr", "cglb", "chain", "product"], add_options)
    data = protocol.load(options.input)
    with cglb.float64():
        baseline = protocol.current_rss()
        result = None
        if options.task == "product":
            call, result = product(data, options.dtype)
        else:
            call = objective(options.task, data, 1e300 if options.no_cg else 1.0, options.blocks)
        results, times, first = protocol.measure(call, options.repeats)
    if options.result and result:
        np.savez(options.result, result=result[0][:, None])
    protocol.write(
        options,
        baseline=baseline,
        times=times,
        first=first,
        versions={"cglb": cglb.__version__, "jax": jax.__version__},
        values=[value for value, _ in results],
        info=results[-1][1],
    )


if __name__ == "__main__":
    main()
