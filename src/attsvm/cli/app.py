"""The app itself: the version, the two consoles, and how a command ends."""

from __future__ import annotations

import json
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from attsvm import __version__

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="markdown")
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=lambda wanted: _version(wanted), is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Attention as max-margin token selection: solve, train, check, apply.

    Each command has examples: `attsvm solve --help`.
    """


def _version(wanted: bool) -> None:
    if wanted:
        print(f"attsvm {__version__}")
        raise typer.Exit


def say(text: object) -> None:
    """Print plain text: brackets are brackets, long lines stay whole."""
    console.print(str(text), markup=False, soft_wrap=True)


def say_json(record: Any) -> None:
    """Print one JSON object."""
    print(json.dumps(record, ensure_ascii=False, default=float))


def stop(message: object, code: int = 1) -> NoReturn:
    """End with one line on stderr."""
    errors.print(" ".join(str(message).split()), markup=False, soft_wrap=True)
    raise typer.Exit(code)
