"""attsvm explore: the interactive page, written to one file and opened."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path as File
from typing import Annotated, Any

import typer

from attsvm.cli.app import AsJson, say, say_json
from attsvm.cli.files import one_line_errors, out_file, read_problem
from attsvm.data.path import Path
from attsvm.numbers.archives import PAGE
from attsvm.numbers.atomic_write import write_text
from attsvm.numbers.files import array_names, naming


def explore(
    file: Annotated[
        File | None, typer.Argument(help="Two-dimensional tokens, a saved run, or what the page saved.")
    ] = None,
    out: Annotated[File, typer.Option(help="The page, one .html file.")] = File("explorer.html"),
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Show it in the browser.")] = True,
    as_json: AsJson = False,
) -> None:
    """Drag tokens in the plane; watch program and training follow.

    One page that runs in any browser, from the file itself: no server, no installation, no request. It opens
    a preset of the papers, or FILE: keys (n, T, 2) with any of queries, labels, mask, values, selected, v; a
    run that `attsvm train` saved; or a .json file that the page saved.

    Examples

    - `attsvm explore`: writes and opens explorer.html
    - `attsvm explore problem.npz`
    - `attsvm explore run.npz --out lecture.html --no-open`

    Exit code 0, 1 on bad input, 64 on wrong usage.
    """
    from attsvm.explorer.page import page

    with one_line_errors():
        out = out_file(out, ".html")
        start = None if file is None else _start(file)
        write_text(out, page(start))
    shown = opened and webbrowser.open(out.absolute().as_uri())
    if as_json:
        say_json({"page": out, "opened": shown})
    else:
        say(f"page: {out}" if shown or not opened else f"page: {out} (no browser found: open it yourself)")


def _start(file: File) -> Any:
    """The state of the page for a file."""
    from attsvm.explorer.state import state_of, state_of_path

    problem = read_problem(file)
    if file.suffix == ".json":
        state = json.loads(file.read_text(encoding="utf8")).get(PAGE)
        if isinstance(state, dict):
            return state
    with naming(file):
        if "path_W" in array_names(file):
            path = Path.load(file)
            saved = path.state or {}
            settings = json.loads(str(saved["settings"])) if "settings" in saved else None
            return state_of_path(path, settings, saved.get("head", problem.v))
        return state_of(problem.tokens, problem.v, problem.selected)
