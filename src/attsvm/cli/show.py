"""attsvm show: print and plot a saved path or solution, or a study."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attsvm._support.options import BadOption
from attsvm.cli.app import AsJson, say, say_json, show_folder
from attsvm.cli.files import one_line_errors, out_file
from attsvm.cli.solve import solution_record
from attsvm.cli.train import path_record, read_settings
from attsvm.data.path import Path
from attsvm.norms.names import norm_of
from attsvm.numbers.atomic_write import naming_disk_errors
from attsvm.numbers.files import array_names

if TYPE_CHECKING:
    from attsvm.norms import Norm
    from attsvm.program.solution import Solution

CHEAP = 1 << 21
"""Numbers in the rows of the largest program that is solved for a picture."""


def show(
    file: Annotated[
        File, typer.Argument(help="A path or solution that attsvm saved (.npz), or the folder of a study.")
    ],
    out: Annotated[
        File | None, typer.Option(help="The picture: .svg, .pdf or .png; FILE.svg by default.")
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(help="Of the program that a path is drawn beside; by default that of its training."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print and plot what train, solve or sweep saved.

    A path shows loss, length, direction and attention against the steps, on logarithmic axes. Where its
    program is small and its norm known, 1 − cosine is that with the certified solution, and the margin is
    drawn too; else it is that with the last weight. A solution shows its margins and singular values; its
    certificate is computed again from the data. Of a study the page and tables are drawn again.

    Examples

    - `attsvm show run.npz`: writes run.svg
    - `attsvm show run.npz --norm linf --out run.png`: beside the program of another norm
    - `attsvm show solution.npz --out margins.pdf`
    - `attsvm show out/phase_diagram`: writes its sweep.html

    Exit code 0, 1 on bad input, 64 on wrong usage.
    """
    with one_line_errors():
        if file.is_dir():
            if out is not None or norm is not None:
                raise BadOption(
                    "--out and --norm are of a picture; a study has a page of its own. Drop them."
                )
            if not show_folder(file, as_json):
                raise ValueError(f"{file} is a folder, and no study. Pass a .npz file, or a study's folder.")
            return
        picture = out_file(out or file.with_suffix(".svg"), ".svg", ".pdf", ".png")
        result = _load(file)
        _draw(result.plot(program_of(result, norm)) if isinstance(result, Path) else result.plot(), picture)
    if as_json:
        record = path_record(result) if isinstance(result, Path) else solution_record(result)
        say_json(record | {"picture": picture})
    else:
        say(result)
        say(f"picture: {picture}")


def _load(file: File) -> Path | Solution:
    names = array_names(file)
    if "path_W" in names:
        return Path.load(file)
    if {"W", "multipliers"} <= names:
        from attsvm.program.solution import Solution

        return Solution.load(file)
    raise ValueError(
        f"{file}: neither a path nor a solution. Pass what attsvm train or solve wrote with --out."
    )


def program_of(path: Path, norm_name: str | None) -> Solution | None:
    """The solution for the tokens that a path selects, in a norm, by default the one that training implies.

    None if no norm is known, or the program is large, has no solution or is not certified.
    """
    from attsvm.program.max_margin import max_margin

    norm = _limit(path) if norm_name is None else norm_of(norm_name)
    if norm is None or path.tokens.keys.size * path.tokens.e * (path.runs or 1) > CHEAP:
        return None
    with suppress(ValueError):  # such as NotSeparable
        solution = max_margin(path.tokens, path.selected, norm)
        if np.all(solution.certified):
            return solution
    return None


def _limit(path: Path) -> Norm | None:
    """The norm that the settings of `attsvm train` imply."""
    from attsvm.comparison.theory import NoTheorem, limit_norm

    if path.state is None or "settings" not in path.state:
        return None
    settings = read_settings(str(path.state["settings"]))
    if settings.weight == "diagonal":  # its program is over diagonals
        return None
    arguments = settings.arguments()
    with suppress(NoTheorem):
        norm = limit_norm(arguments["weight"], arguments["optimizer"], arguments["batch"]).norm
        return None if isinstance(norm, str) else norm  # its program is in the laboratory
    return None


def _draw(canvas: Any, picture: File) -> None:
    from attsvm.plotting.style import write_svg

    with naming_disk_errors(picture):
        if picture.suffix == ".svg":
            write_svg(canvas, picture)
        else:
            canvas.savefig(picture, dpi=160)
