"""One small study, of shapes that share a compilation."""

import pytest

from attsvm_lab.workers import SerialExecutor

pytest.importorskip("pyarrow", reason="needs attsvm[lab]")


@pytest.fixture
def study():
    return {
        "measure": ["kind", "margin_ratio"],
        "seeds": 6,
        "data": {"model": "prompt_sphere", "n": 2, "T": [2, 4], "d": [2, 5]},
        "train": {"steps": 60, "lr": 0.5},
    }


class Counting(SerialExecutor):
    """This process, and how many runs it was asked for."""

    def __init__(self):
        self.runs = 0

    def submit(self, fn, /, *args, **options):
        if fn.__name__ == "compute":
            self.runs += sum(len(batch.seeds) for batch in args[0])
        return super().submit(fn, *args, **options)


@pytest.fixture
def here():
    return Counting()


@pytest.fixture
def tables_only(monkeypatch):
    """No page: its pictures take longer than all runs of a small study."""
    monkeypatch.setattr("attsvm_lab.sweeps.page.page", lambda _: "")
