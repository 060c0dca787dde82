"""attsvm show: print and plot a saved path or solution, or a study."""

from __future__ import annotations

from pathlib import Path as File
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attsvm.cli.app import AsJson, say, say_json
from attsvm.cli.files import one_line_errors, out_file
from attsvm.cli.solve import solution_record
from attsvm.cli.sweep import tell
from attsvm.cli.train import path_record
from attsvm.files import array_names
from attsvm.path import Path
from attsvm.words import WrongWord

if TYPE_CHECKING:
    from attsvm.program.solution import Solution


def show(
    file: Annotated[
        File, typer.Argument(help="A path or solution that attsvm saved (.npz), or the folder of a study.")
    ],
    out: Annotated[
        File | None, typer.Option(help="The picture: .svg, .pdf or .png; FILE.svg by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print and plot what `attsvm train`, `attsvm solve` or `attsvm sweep` saved: a path, solution or study.

    A path shows loss, norm and attention against the steps; a solution its margins and singular
    values. The certificate is computed again from the data. Of a study the page and tables are drawn again.

    Examples

    - `attsvm show run.npz`: writes run.svg
    - `attsvm show solution.npz --out margins.pdf`
    - `attsvm show out/phase_diagram`: writes its sweep.html

    Exit code 0, 1 on bad input, 64 on wrong usage.
    """
    with one_line_errors():
        if file.is_dir():
            if out is not None:
                raise WrongWord("--out names a picture; a study is drawn in its own folder. Drop it.")
            _show_study(file, as_json)
            return
        picture = out_file(out or file.with_suffix(".svg"), ".svg", ".pdf", ".png")
        thing = _load(file)
        _draw(thing, picture)
    if as_json:
        record = path_record(thing) if isinstance(thing, Path) else solution_record(thing)
        say_json(record | {"picture": picture})
    else:
        say(thing)
        say(f"picture: {picture}")


def _show_study(folder: File, as_json: bool) -> None:
    from attsvm.sweeps.result import Sweep

    done = Sweep.load(folder)
    done.write()
    tell(done, as_json)


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


def _draw(thing: Any, picture: File) -> None:
    from attsvm.reproduce import write_svg

    canvas = thing.plot()
    if picture.suffix == ".svg":
        write_svg(canvas, picture)
    else:
        canvas.savefig(picture, dpi=160)
