"""What all tests share: shapes and dtypes are checked at every call, and promotion is an error."""

import jax
import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

# before the first import of cglb: every function's jaxtyping signature is enforced by beartype
jaxtyping.install_import_hook("cglb", "typecheck.checked")

settings.register_profile(
    "cglb",
    deadline=None,  # the first call of a shape compiles
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("cglb")


@pytest.fixture(autouse=True)
def strict_jax():
    """No silent change of dtype or rank anywhere in the package."""
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
