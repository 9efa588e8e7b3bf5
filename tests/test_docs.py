"""What the README and the docs show runs as it stands, and so do the examples."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import problems
import pytest

import cglb

ROOT = Path(__file__).parent.parent
PYTHON = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
PAGES = {
    str(path.relative_to(ROOT)): PYTHON.findall(path.read_text(encoding="utf-8"))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}


@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if blocks])
def test_python_on_a_page_runs(page, tmp_path, monkeypatch):
    """From top to bottom. The README brings all that it needs; in the docs X and y are the reader's."""
    monkeypatch.chdir(tmp_path)
    X, y, _ = problems.data()
    scope = {} if page == "README.md" else {"cglb": cglb, "np": np, "X": X, "y": y}
    for number, block in enumerate(PAGES[page], start=1):
        exec(compile(block, f"{page}, example {number}", "exec"), scope)


def test_the_readme_has_an_example():
    assert PAGES["README.md"]


def test_the_words_of_warnings_on_the_page_are_those_of_the_code():
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # texts that go over several lines
    page = (ROOT / "docs" / "howto" / "warnings.md").read_text()
    shown = re.findall(r'^\| "(.*?)" \|', page, flags=re.MULTILINE)
    assert len(shown) > 20
    for words in shown:
        for part in filter(None, map(str.strip, words.split("…"))):
            assert part in source, words


def test_demo_runs_and_draws(tmp_path, monkeypatch, capsys):
    """With as many rows and inducing points as the README's example, whose compiled code it shares."""
    monkeypatch.setattr(
        sys,
        "argv",
        ["demo.py", "--rows", "450", "--inducing", "100", "--steps", "4", "--output", str(tmp_path)],
    )
    runpy.run_path(str(ROOT / "examples" / "demo.py"), run_name="__main__")
    assert {path.name for path in tmp_path.iterdir()} == {"predictions.png", "training.png"}
    assert "coverage" in capsys.readouterr().out
