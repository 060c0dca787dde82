"""Moments in which Ctrl-C must wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ignoring_ctrl_c() -> Iterator[None]:
    """Ignore Ctrl-C inside the block. Only the main thread can: elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:  # None: the handler is not Python's, and cannot be set from here
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


@contextmanager
def deferring_ctrl_c() -> Iterator[None]:
    """Handle a Ctrl-C that is pressed inside the block after it. Only the main thread can, as above."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pressed: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: pressed.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            handler(signal.SIGINT, pressed[0])
