"""Worker processes: their settings, and that they leave this process as it was."""

import multiprocessing
import os
import time

import pytest

from attsvm.workers import begin, workers


def test_workers_use_one_thread_each_and_our_settings_stay_untouched(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    begin("json")
    with workers(1) as pool:
        inherited = pool.submit(os.getenv, "OMP_NUM_THREADS").result()
    assert inherited == "1"
    assert dict(os.environ) == before


def test_an_interrupt_ends_what_the_workers_are_doing():
    others = multiprocessing.active_children()
    with pytest.raises(KeyboardInterrupt), workers(1) as pool:
        pool.submit(time.sleep, 60)
        ours = [child for child in multiprocessing.active_children() if child not in others]
        raise KeyboardInterrupt
    for child in ours:
        child.join(10)
    assert ours
    assert not any(child.is_alive() for child in ours)
