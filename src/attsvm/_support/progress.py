"""Progress of long computations: a line on the terminal, if there is one, after two seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 2.0
"""Seconds before a terminal shows the progress."""

_silent = ContextVar("silent", default=False)
_terminal = threading.Lock()
"""Held by the one visible line. Nested computations, and those of other threads, show none."""


@contextmanager
def silence() -> Iterator[None]:
    """Show no lines of the computations inside: the caller of many jobs reports their progress."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class ProgressLine:
    """A line on stderr, removed at the end.

        with Line() as line:
            while …:
                line.show("pass 3: 12 rows violated")

    total: if it is known, a bar shows the share that is completed.
    """

    def __init__(self, total: float | None = None) -> None:
        self.total = total
        self._start_time = time.perf_counter()
        self._display: Progress | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None
            _terminal.release()

    def show(self, description: str, completed: float = 0.0) -> None:
        """Describe the current work, and say how much of the total is completed."""
        if _silent.get() or time.perf_counter() - self._start_time < PATIENCE:
            return
        if self._display is None:
            if not _terminal.acquire(blocking=False):
                return
            self._display = _new_display(bar=self.total is not None)
            self._display.add_task(description, total=self.total)
            self._display.start()
        self._display.update(self._display.task_ids[0], description=description, completed=completed)


def _new_display(bar: bool) -> Progress:
    # rich is imported here, so that neither `import attsvm` nor short computations wait for it.
    from rich import progress as rich
    from rich.console import Console

    console: Any = Console(stderr=True)
    text, suffix = rich.TextColumn("{task.description}"), rich.TextColumn("left")
    with_bar = (text, rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeRemainingColumn(), suffix)
    columns = with_bar if bar else (rich.SpinnerColumn(), text, rich.TimeElapsedColumn())
    return rich.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
