"""The line of progress: after a while, and not of jobs that somebody else reports."""

import pytest

from attsvm import progress


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

    monkeypatch.setattr(progress, "_display", lambda bar: Display())
    return said


def test_a_line_appears_when_patience_is_over_and_is_silent_inside_a_job(shown, monkeypatch):
    with progress.Line() as line:
        line.show("early")
        monkeypatch.setattr(progress, "PATIENCE", 0.0)
        with progress.silence():
            line.show("inside")
        line.show("late")
    assert shown == ["late"]
