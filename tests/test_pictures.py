"""Diagnostics, plots and the report of a model: the numbers are right, the pictures are whole."""

import functools
import re
import shutil
import subprocess
from html.parser import HTMLParser

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import test_tables

from cglb import Evidence, GPRegressor, diagnostics, metrics, plot
from cglb.page import charts, write_report
from cglb.page.svg import number, ticks

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
N = test_tables.N
FRAME = pd.DataFrame(test_tables.RAW)
TARGET = pd.Series(40.0 + 3.0 * test_tables.Y, name="<weight>")


@functools.cache
def fitted():
    return GPRegressor("cglb", num_inducing=10, max_steps=3, schedule="direct").fit(FRAME, TARGET)


# ---- diagnostics ----


def test_leave_one_out_is_prediction_from_all_other_rows():
    held = diagnostics.leave_one_out(fitted())
    for row in (0, 7, N - 1):
        others = np.arange(N) != row
        K = diagnostics._matrix(fitted().gp_, fitted()._X, np.full(N, float(fitted().gp_.noise)))
        e = fitted()._y - float(fitted().gp_.mean)
        weights = np.linalg.solve(K[others][:, others], K[others, row])
        mean = (weights @ e[others] + float(fitted().gp_.mean)) * fitted().y_scale_ + fitted().y_shift_
        variance = (K[row, row] - weights @ K[others, row]) * fitted().y_scale_ ** 2
        assert held.mean[row] == pytest.approx(mean, rel=1e-8)
        assert held.std[row] == pytest.approx(np.sqrt(variance), rel=1e-8)
    np.testing.assert_allclose(held.y, TARGET, rtol=1e-12)


def test_many_rows_are_predicted_from_their_nearest(monkeypatch):
    exact = diagnostics.leave_one_out(fitted())
    monkeypatch.setattr(diagnostics, "EXACT_ROWS", 10)
    monkeypatch.setattr(diagnostics, "SAMPLE", 12)
    monkeypatch.setattr(diagnostics, "NEAREST", N - 1)
    held = diagnostics.leave_one_out(fitted())
    assert len(held.y) == 12
    rows = [int(np.argmin(abs(exact.y - y))) for y in held.y]
    np.testing.assert_allclose(held.mean, exact.mean[rows], rtol=1e-6)
    monkeypatch.setattr(diagnostics, "NEAREST", 20)
    near = diagnostics.leave_one_out(fitted())
    assert "20 nearest" in near.how
    assert metrics.rmse(near.mean, exact.mean[rows]) < 0.5 * TARGET.std()


def test_scores_and_calibration_are_those_of_the_metrics():
    held = diagnostics.held_out(fitted(), FRAME[:20], TARGET[:20])
    mean, std = fitted().predict(FRAME[:20], return_std=True)
    assert held.scores()["rmse"] == metrics.rmse(TARGET[:20], mean)
    levels, covered = diagnostics.calibration(held)
    assert covered[9] == metrics.coverage(TARGET[:20], mean, std**2, levels[9])
    assert (np.diff(covered) >= 0).all()


@pytest.mark.parametrize("name", ["speed", "colour", "open", "day"])
def test_dependence_is_the_average_over_rows_with_one_input_moved(name):
    found = diagnostics.dependence(fitted(), name)
    for place in (0, len(found.values) - 1):
        value = found.values[place]
        if name == "day":
            value = pd.Timestamp(value * 86400.0, unit="s")
        moved = FRAME.assign(**{name: bool(value) if name == "open" else value})
        assert found.mean[place] == pytest.approx(fitted().predict(moved).mean(), rel=1e-6)
    assert (found.std > 0).all()


def test_dependence_on_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no input 'depth'"):
        diagnostics.dependence(fitted(), "depth")
    with pytest.raises(ValueError, match="'place' was constant"):
        diagnostics.dependence(fitted(), "place")


# ---- plots ----

DISPLAYS = {
    "predictions": lambda ax: plot.PredictionDisplay.from_estimator(fitted(), ax=ax),
    "held out": lambda ax: plot.PredictionDisplay.from_estimator(fitted(), FRAME, TARGET, ax=ax),
    "calibration": lambda ax: plot.CalibrationDisplay.from_estimator(fitted(), ax=ax),
    "number": lambda ax: plot.PartialDependenceDisplay.from_estimator(fitted(), "speed", ax=ax),
    "text": lambda ax: plot.PartialDependenceDisplay.from_estimator(fitted(), "colour", ax=ax),
    "date": lambda ax: plot.PartialDependenceDisplay.from_estimator(fitted(), "day", ax=ax),
    "training": lambda ax: plot.TrainingDisplay.from_estimator(fitted(), ax=ax),
    "relevance": lambda ax: plot.RelevanceDisplay.from_estimator(fitted(), ax=ax),
    "evidence": lambda ax: plot.EvidenceDisplay.from_estimator(fitted(), ax=ax),
}


@pytest.mark.parametrize("name", DISPLAYS)
def test_a_display_draws_on_the_given_axes(name):
    figure, ax = plt.subplots()
    display = DISPLAYS[name](ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert ax.get_xlabel()
    assert ax.lines or ax.patches
    figure.canvas.draw()
    plt.close(figure)


def test_a_display_makes_axes_and_can_be_drawn_again():
    display = plot.RelevanceDisplay.from_estimator(fitted())
    first = display.figure_
    names = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert names[-1] == max(fitted().relevance_, key=fitted().relevance_.get)
    assert display.plot().figure_ is not first
    plt.close("all")
    with pytest.raises(ValueError, match="both X and y"):
        plot.PredictionDisplay.from_estimator(fitted(), FRAME)


def test_every_step_of_training_is_in_one_climb():
    found = diagnostics.climbs(fitted())
    history = fitted().history_
    assert len(found) == len({row["stage"] for row in history})
    steps = np.concatenate([climb.steps for climb in found])
    bounds = np.concatenate([climb.bounds * climb.rows for climb in found])
    np.testing.assert_array_equal(steps, [row["step"] for row in history])
    np.testing.assert_allclose(bounds, [row["bound"] for row in history], rtol=1e-12)
    drawn = plot.TrainingDisplay.from_estimator(fitted())
    assert len(drawn.ax_.lines) == len(found)
    plt.close("all")


# ---- notebook ----


def test_a_notebook_shows_what_a_fit_is_worth():
    html = fitted()._repr_mimebundle_()["text/html"]
    assert "Gaussian process on 40 rows" in html
    assert "bound on the log marginal likelihood" in html
    assert "Gaussian process on" not in GPRegressor()._repr_mimebundle_()["text/html"]


# ---- the report ----


class Outline(HTMLParser):
    """Tags, and what is open; an element that is closed out of order is an error."""

    VOID = ("meta", "link", "br")

    def __init__(self):
        super().__init__()
        self.open, self.counts, self.addresses = [], {}, []

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    facts = write_report(fitted(), path)
    return path, facts


def test_the_report_is_whole_and_needs_no_network(page):
    path, facts = page
    text = path.read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.counts["svg"] == outline.counts["figure"] == 11
    assert outline.addresses == ["data:,"]
    assert "http" not in text.replace("http-equiv", "")
    assert "nan" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL).replace(
        "nats", ""
    ).split('"')
    assert "&lt;weight&gt;" in text
    assert "<weight>" not in text
    assert "colour holds text" in text
    assert facts["coverage"] == diagnostics.leave_one_out(fitted()).scores()["coverage"]
    assert f"{100 * facts['coverage']:.1f} %" in text


@pytest.mark.parametrize("ends", [(-np.inf, 3.0), (-np.inf, np.inf), (2.0, 2.0), (1.0, 4.0)])
def test_an_interval_that_is_open_can_be_drawn(ends):
    svg = charts.evidence(Evidence(*ends), 1.5, "bound")
    assert not re.search(r'="-?(nan|inf)"|nan,|inf,', svg)
    assert svg.count("<circle") == sum(map(np.isfinite, ends))


def test_the_report_takes_rows_that_were_kept_apart(tmp_path):
    facts = write_report(fitted(), tmp_path / "r.html", FRAME[:10], TARGET[:10])
    assert facts["how"] == "10 rows that training did not see"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.parametrize("theme", [0, 1], ids=["dark", "light"])
def test_a_browser_opens_the_report_without_complaint(page, theme, tmp_path):
    path, _ = page
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr",
        "--window-size=1280,900",
    ]
    command += [
        f"--blink-settings=preferredColorScheme={theme}",
        f"--screenshot={tmp_path / 'shot.png'}",
    ]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    picture = plt.imread(tmp_path / "shot.png")
    assert picture.shape[:2] == (900, 1280)
    background = picture[5, 5, :3].mean()
    assert background < 0.2 if theme == 0 else background > 0.9


# ---- numbers on axes ----


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3.2, 7.9), (1e-9, 5e-9), (999.0, 1001.0), (-1e7, 2e8)]
)
def test_ticks_are_few_and_inside(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert low <= found[0] < found[-1] <= high


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12345.6, "12,346"), (1e-9, "1e-09"), (np.inf, "–"), (3.14159, "3.142")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text
