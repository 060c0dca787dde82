"""How far long work has come: a line on the terminal after two seconds, silence elsewhere."""

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
"""Seconds after which a terminal shows the progress."""

_silent = ContextVar("silent", default=False)
_terminal = threading.Lock()
"""Held by the one line that is shown: work inside other work, or beside it in a thread, stays silent."""


@contextmanager
def silence() -> Iterator[None]:
    """No lines from within: of many jobs at once the one who waits for them tells how far they are."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class Line:
    """One line on stderr, which goes when the work is done.

        with Line() as line:
            while …:
                line.show("pass 3: 12 rows violated")

    total: where the end is known, a bar shows which part of it is `done`.
    """

    def __init__(self, total: float | None = None) -> None:
        self.total = total
        self._begun = time.perf_counter()
        self._shown: Progress | None = None

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None
            _terminal.release()

    def show(self, what: str, done: float = 0.0) -> None:
        """Say what is being done, and how much of the total is."""
        if _silent.get() or time.perf_counter() - self._begun < PATIENCE:
            return
        if self._shown is None:
            if not _terminal.acquire(blocking=False):
                return
            self._shown = _display(bar=self.total is not None)
            self._shown.add_task(what, total=self.total)
            self._shown.start()
        self._shown.update(self._shown.task_ids[0], description=what, completed=done)


def _display(bar: bool) -> Progress:
    # `import attsvm` does not wait for rich, nor does work that takes a moment.
    from rich import progress as rich
    from rich.console import Console

    console: Any = Console(stderr=True)
    text, left = rich.TextColumn("{task.description}"), rich.TextColumn("left")
    known = (text, rich.BarColumn(), rich.TaskProgressColumn(), rich.TimeRemainingColumn(), left)
    columns = known if bar else (rich.SpinnerColumn(), text, rich.TimeElapsedColumn())
    return rich.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
