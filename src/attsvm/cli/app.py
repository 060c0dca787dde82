"""The app: the version, the two consoles, how a command ends, and commands of other packages."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path as File
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperCommand, TyperGroup

from attsvm import __version__
from attsvm._support import strict_json
from attsvm._support.ctrl_c import ignoring_ctrl_c

USAGE = 64
"""Exit code of a wrong command, option or value: EX_USAGE of sysexits.h."""

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and SIGTERM: 128 plus the number of the signal, as in shells."""

PATIENCE = 5.0
"""Seconds that the process may take to end after the last message, before a further Ctrl-C ends it."""

COMMANDS, FOLDERS = "attsvm.commands", "attsvm.folders"
"""Groups of entry points by which other packages join.

[project.entry-points."attsvm.commands"]
sweep = "attsvm_lab.cli.sweep:sweep"        # a command: a function with typer's annotations
[project.entry-points."attsvm.folders"]
study = "attsvm_lab.cli.sweep:show_study"   # attsvm show FOLDER: (folder, as_json) -> whether it can show it
"""

_terminated = ContextVar("terminated", default=False)
_prints_json = ContextVar("prints_json", default=False)
_explained = ContextVar("explained", default=False)
_is_program = ContextVar("is_program", default=False)
"""Whether the process was started for this command: a caller in Python passes the arguments."""
_WrongUsage: Any = typer.BadParameter.__mro__[1]  # UsageError, of click or of the copy inside newer typers


class Commands(TyperGroup):
    """The commands: wrong usage has its own exit code, and every terminal can show the output."""

    def main(self, *args: Any, **settings: Any) -> NoReturn:
        arguments = settings.get("args", args[0] if args else None)
        _is_program.set(arguments is None)
        _prints_json.set("--json" in (sys.argv[1:] if arguments is None else arguments))
        _explained.set(False)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? for ‖
        with _terminating():
            try:
                code = super().main(*args, **settings | {"standalone_mode": False})
                print(end="", flush=True)  # works without a standard output, too
            except OSError as error:  # commands handle errors of files: this one is of the standard output
                code = _output_failed(error)
            except _WrongUsage as error:
                code = _explain(error)
            except typer.Abort:
                code = INTERRUPTED
            if code == INTERRUPTED and not _explained.get():
                _fail("interrupted. Nothing is kept.", _final(code), {})
            sys.exit(_final(code))

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


class Command(TyperCommand):
    """A command whose help shows `--json`, not `--json <bool>`: a flag takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, rich_markup_mode="markdown")
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines; errors too.")]


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=lambda value: _version(value), is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Attention as max-margin token selection: solve, train, check, apply.

    Each command has examples: `attsvm solve --help`. Exit codes: 0 success, 1 bad input or a number that
    differs, 2 not separable, 3 not certified, 64 wrong usage, 130 Ctrl-C, 143 SIGTERM.
    """


def _flags_without_type(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def _version(requested: bool) -> None:
    if requested:
        print(f"attsvm {__version__}")
        raise typer.Exit


def say(text: object) -> None:
    """Print text without markup and without breaking long lines."""
    console.print(str(text), markup=False, soft_wrap=True)


def say_json(record: Any) -> None:
    """Print one JSON object; numbers that are not finite are null."""
    print(strict_json.dumps(record))


def bar() -> Progress:
    """A progress bar on stderr, removed at the end; none if stderr is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(
        *columns, TextColumn("left"), console=errors, transient=True, disable=not errors.is_terminal
    )


def warn(message: object) -> None:
    """Print one line on stderr."""
    errors.print(" ".join(str(message).split()), markup=False, soft_wrap=True)


def stop(message: object, code: int = 1, **facts: Any) -> NoReturn:
    """End without a result: one line on stderr and, with --json, one object with the facts."""
    code = _final(code)
    _fail(message, code, facts)
    raise typer.Exit(code)


@contextmanager
def _terminating() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that a command saves the same after both."""
    owner = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked worker has nothing to save
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        _terminated.set(True)
        on_interrupt = signal.getsignal(signal.SIGINT)
        if not callable(on_interrupt):  # a script in the background ignores SIGINT
            segments = sys.modules.get("attsvm.training.segments")
            on_interrupt = signal.default_int_handler if segments is None else segments.press
        on_interrupt(signal.SIGINT, frame)

    # Keep a handler that the caller has set. Only the main thread can set one.
    is_main = threading.current_thread() is threading.main_thread()
    ours = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
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


def _output_failed(error: OSError) -> int:
    """The exit code after an error of the standard output. No message if its reader has closed it."""
    if not isinstance(error, BrokenPipeError):
        _explained.set(True)
        warn(f"cannot write to standard output: {error.strerror}. Write it elsewhere.")
    with suppress(OSError, ValueError):  # when Python exits it would try to flush again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _explain(error: Any) -> int:
    message = error.format_message()
    if message:  # empty if the help was printed instead
        command = error.ctx.command_path if error.ctx is not None else "attsvm"
        _fail(f"{message} See {command} --help.", USAGE, {})
    return USAGE


def _fail(message: object, code: int, facts: dict[str, Any]) -> None:
    with ignoring_ctrl_c():  # a second one must not cut the message
        _explained.set(True)
        warn(message)
        if _prints_json.get():
            say_json({"error": " ".join(str(message).split()), "code": code} | facts)
    if code in (INTERRUPTED, TERMINATED) and _is_program.get():
        _end_quietly(code)


def _end_quietly(code: int) -> None:
    """Let the process end: a further Ctrl-C prints no traceback, and ends it where it has not ended soon."""
    if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
        late = time.monotonic() + PATIENCE
        signal.signal(signal.SIGINT, lambda *_: os._exit(code) if time.monotonic() > late else None)


# ---------------------------------------------------------------------- commands of other packages


def other_commands() -> dict[str, Callable[..., Any]]:
    """The commands of other packages by their names."""
    return {entry.name: entry.load() for entry in entry_points(group=COMMANDS)}


def show_folder(folder: File, as_json: bool) -> bool:
    """Let other packages show a folder; False if none can."""
    return any(entry.load()(folder, as_json) for entry in entry_points(group=FOLDERS))
