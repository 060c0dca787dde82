"""The app itself: the version, the two consoles, and how a command ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from attsvm import __version__
from attsvm._support import strict_json
from attsvm.cli.letters import use_plain_letters

USAGE = 64
"""Exit code of a wrong command, option or word: EX_USAGE of sysexits.h."""

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C, and after SIGTERM: 128 and the number of the signal, as shells count."""

_terminated = ContextVar("terminated", default=False)
_speaks_json = ContextVar("speaks_json", default=False)
_explained = ContextVar("explained", default=False)
_WrongUsage: Any = typer.BadParameter.__mro__[1]  # UsageError, of click or of the copy inside newer typers


class Commands(TyperGroup):
    """The commands: wrong usage has a code of its own, and every terminal can show what they print."""

    def main(self, *args: Any, **settings: Any) -> NoReturn:
        words = settings.get("args", args[0] if args else None)
        _speaks_json.set("--json" in (sys.argv[1:] if words is None else words))
        _explained.set(False)
        use_plain_letters(sys.stdout, sys.stderr)
        with _terminating():
            try:
                code = super().main(*args, **settings | {"standalone_mode": False})
                print(end="", flush=True)  # which also works where there is no standard output
            except OSError as error:  # commands tell those of files, so it is what they print
                code = _unprinted(error)
            except _WrongUsage as error:
                code = _explain(error)
            except typer.Abort:
                code = INTERRUPTED
            if (
                code == INTERRUPTED and not _explained.get()
            ):  # a command that keeps nothing says nothing of it
                _fail("interrupted. Nothing is kept.", _final(code), {})
            sys.exit(_final(code))


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, rich_markup_mode="markdown")
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

Cluster = Annotated[
    str | None, typer.Option(help="Run on Dask: the address of a scheduler, or local:8 for 8 workers here.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines; errors too.")]


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=lambda wanted: _version(wanted), is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Attention as max-margin token selection: solve, train, check, apply.

    Each command has examples: `attsvm solve --help`.

    Exit codes: 0 as wished, 1 bad input, a derived number that differs or a run that diverged, 2 not
    separable, 3 solved but not certified, 64 wrong usage, 130 stopped by Ctrl-C, 143 by SIGTERM
    (SLURM, `docker stop`), which keeps what Ctrl-C keeps.
    """


def _version(wanted: bool) -> None:
    if wanted:
        print(f"attsvm {__version__}")
        raise typer.Exit


def say(text: object) -> None:
    """Print plain text: brackets are brackets, long lines stay whole."""
    console.print(str(text), markup=False, soft_wrap=True)


def say_json(record: Any) -> None:
    """Print one JSON object; what is not finite is null."""
    print(strict_json.dumps(record))


def bar() -> Progress:
    """A bar on stderr, which goes when the work is done; none where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(
        *columns, TextColumn("left"), console=errors, transient=True, disable=not errors.is_terminal
    )


def warn(message: object) -> None:
    """Print one line on stderr."""
    errors.print(" ".join(str(message).split()), markup=False, soft_wrap=True)


def stop(message: object, code: int = 1, **facts: Any) -> NoReturn:
    """End without a result: one line on stderr and, where JSON is spoken, one object with the facts."""
    code = _final(code)
    _fail(message, code, facts)
    raise typer.Exit(code)


@contextmanager
def _terminating() -> Iterator[None]:
    """SIGTERM is taken for Ctrl-C, so that whatever cares for one cares for both."""
    owner = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a worker that was forked, which may just end
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        _terminated.set(True)
        pressed = signal.getsignal(signal.SIGINT)
        if not callable(pressed):  # ignored, as in the background of a script: what runs is told directly
            segments = sys.modules.get("attsvm.training.segments")
            pressed = signal.default_int_handler if segments is None else segments.press
        pressed(signal.SIGINT, frame)

    # A handler that is not the system's own is somebody's wish; other threads cannot set one.
    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        _terminated.set(False)
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _final(code: Any) -> Any:
    return TERMINATED if code == INTERRUPTED and _terminated.get() else code


def _unprinted(error: OSError) -> int:
    """The exit code where standard output takes no more; a reader that has closed it knows that."""
    if not isinstance(error, BrokenPipeError):
        _explained.set(True)
        warn(f"cannot write to standard output: {error.strerror}. Write it elsewhere.")
    with suppress(OSError, ValueError):  # at its end Python would try to write the rest again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _explain(error: Any) -> int:
    message = error.format_message()
    if message:  # empty where the help was printed instead
        command = error.ctx.command_path if error.ctx is not None else "attsvm"
        _fail(f"{message} See {command} --help.", USAGE, {})
    return USAGE


def _fail(message: object, code: int, facts: dict[str, Any]) -> None:
    _explained.set(True)
    warn(message)
    if _speaks_json.get():
        say_json({"error": " ".join(str(message).split()), "code": code} | facts)
