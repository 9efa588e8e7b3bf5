"""What the README shows runs as it stands, and so do the examples."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_example_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"README.md, example {number + 1}", "exec"), {})


def test_readme_has_examples():
    assert len(BLOCKS) == 2


def test_demo_runs_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys,
        "argv",
        ["demo.py", "--rows", "240", "--inducing", "60", "--steps", "4", "--output", str(tmp_path)],
    )
    runpy.run_path(str(ROOT / "examples" / "demo.py"), run_name="__main__")
    assert {path.name for path in tmp_path.iterdir()} == {"predictions.png", "training.png"}
    assert "coverage" in capsys.readouterr().out
