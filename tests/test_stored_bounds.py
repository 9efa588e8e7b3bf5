"""Every bound has the value and gradient it had before the package was split into layers."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent / "reference"
sys.path.insert(0, str(FOLDER))
import make_bounds  # noqa: E402

STORED = json.loads((FOLDER / "bounds.json").read_text())


@pytest.mark.parametrize("problem", make_bounds.PROBLEMS)
def test_values_and_gradients_are_those_stored(problem):
    found = make_bounds.everything([problem])[problem]
    assert found.keys() == STORED[problem].keys()
    for case, stored in STORED[problem].items():
        for name, value in stored["terms"].items():
            assert found[case]["terms"][name] == pytest.approx(value, rel=1e-12), (case, name)
        # relative to the gradient as a whole: single entries are what is left of larger sums
        one, other = (np.concatenate(side["gradient"]) for side in (found[case], stored))
        assert np.abs(one - other).max() <= 1e-12 * np.abs(other).max(), case
