"""Long work in segments: between two compiled calls there is time for Ctrl-C and for a progress bar."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from attsvm._support.progress import ProgressLine
from attsvm.data.path import Path
from attsvm.data.tokens import Tokens
from attsvm.training.compilation import backend

SEGMENT = 0.25
"""Seconds that a compiled call should last: nothing can interrupt it."""
GROWTH = 16
"""Largest growth of the steps of one call: a short call predicts the time of a long one badly."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during train() or regularisation_path().

    path: what was computed until then, or None where that is nothing. A training run goes on from it by
    train(…, resume=path).
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__("interrupted; .path holds what was computed")
        self.path = path


class Forked(UserWarning):
    """A process that was forked from one in which JAX had run."""


class Paused(Interrupted):
    """A run that stopped after the time of `pausing`; its path can be resumed like any other."""


_pause = ContextVar("pause", default=math.inf)
_users: list[int] = []
"""Ids of the processes that have computed; after a fork the parent's is the first."""


_running: list[Segments] = []
"""The work of the main thread, the innermost last."""


@contextmanager
def pausing(seconds: float) -> Iterator[None]:
    """Let train() raise Paused after so many seconds, unless it has ended, so that its path can be saved."""
    token = _pause.set(seconds)
    try:
        yield
    finally:
        _pause.reset(token)


class Segments:
    """How long the next call may be, whether Ctrl-C was pressed, and a progress bar.

        with Segments("training", total=10_000, first=100) as segments:
            while … and not segments.pressed:
                take up to segments.steps steps
                segments.done += steps
                segments.took(steps)

    Ctrl-C waits for the end of the current call: arrays and records stay whole, and no compiled program
    runs on while Python ends. A second Ctrl-C does not wait.
    """

    def __init__(self, label: str, total: float, first: int) -> None:
        self.what, self.steps = label, first
        self.by_hand, self.paused, self.done = False, False, 0.0
        self._last = time.perf_counter()
        self._pause = self._last + _pause.get()
        self._line = ProgressLine(total)
        self._caught = False

    def __enter__(self) -> Segments:
        _notice_fork()
        # A handler that is not Python's own was set by the user; other threads never see Ctrl-C.
        self._caught = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._caught:
            signal.signal(signal.SIGINT, self._press)
        if threading.current_thread() is threading.main_thread():
            _running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._line.__exit__()
        if self in _running:
            _running.remove(self)
        if self._caught:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @property
    def pressed(self) -> bool:
        """Whether the work shall end after the current call."""
        return self.by_hand or self.paused

    def took(self, steps: int) -> None:
        """A call of so many steps has ended."""
        now = time.perf_counter()
        if steps:
            fitting = steps * SEGMENT / max(now - self._last, 1e-9)
            self.steps = max(1, int(min(fitting, GROWTH * max(steps, self.steps))))
        self._last, self.paused = now, now >= self._pause
        self._line.show(self.what, self.done)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.by_hand:
            signal.default_int_handler(number, frame)
        self.by_hand = True


def first_steps(tokens: Tokens, runs: int | None) -> int:
    """The steps of the first call, before any is timed: about half a second at 2 ns per entry that is read.

    A GPU reads a hundred entries in that time.
    """
    d, e = tokens.d, tokens.e
    entries = tokens.n * tokens.T * d + 10 * d * e * min(d, e)  # the latter: some steps factor W
    seconds = 2e-9 if backend() == "cpu" else 2e-11
    return max(1, int(2 * SEGMENT / (1e-4 + seconds * (runs or 1) * entries)))


def press(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C for the innermost running work, also where SIGINT itself is ignored."""
    (_running[-1]._press if _running else signal.default_int_handler)(number, frame)


def _notice_fork() -> None:
    """Warn once in a process that was forked after JAX had run: XLA's threads do not exist in it."""
    if os.getpid() in _users:
        return
    _users.append(os.getpid())
    if len(_users) > 1:
        warnings.warn(
            "this process was forked after JAX had run, and may wait forever for threads that it lacks. "
            "Start workers before, or with multiprocessing's forkserver or spawn, as attsvm's own are.",
            Forked,
            stacklevel=4,
        )
