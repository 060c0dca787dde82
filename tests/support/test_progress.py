"""The line of progress: after a while, and not of jobs that somebody else reports."""

import numpy as np
import pytest

from attsvm._support import progress


@pytest.fixture
def shown(monkeypatch):
    said = []

    class Display:
        task_ids = (0,)

        def add_task(self, what, total):
            said.append(what)

        def start(self): ...
        def stop(self): ...
        def update(self, *_, **__): ...

    monkeypatch.setattr(progress, "_new_display", lambda bar: Display())
    return said


def test_a_line_appears_when_patience_is_over_and_is_silent_inside_a_job(shown, monkeypatch):
    with progress.ProgressLine() as line:
        line.show("early")
        monkeypatch.setattr(progress, "PATIENCE", 0.0)
        with progress.silence():
            line.show("inside")
        line.show("late")
    assert shown == ["late"]


def test_of_lines_within_each_other_one_is_shown(shown, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with progress.ProgressLine() as outer:
        with progress.ProgressLine() as early:
            early.show("first")
            outer.show("around")
        outer.show("outer")
        with progress.ProgressLine() as late:
            late.show("inner")
    assert shown == ["first", "outer"]


def test_a_probe_says_what_it_does_and_its_resamples_say_it_once(shown, monkeypatch):
    probes = pytest.importorskip("attsvm.probe", reason="needs the extra sklearn")
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    X = np.random.default_rng(0).standard_normal((24, 3, 2))
    y = (X[:, :, 0].max(1) > 0.7).astype(int)
    probe = probes.AttentionProbe(features=["linear", "rbf"]).fit(X, y)
    assert [said.split()[0] for said in shown] == ["choosing", "choosing", "fitting:", "fitting:"]
    del shown[:]
    probe.stability(X, y, resamples=2)
    assert shown == ["resample 1 of 2"]
