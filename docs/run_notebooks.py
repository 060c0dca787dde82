"""A notebook as text → a page with its outputs and figures, and an .ipynb to download.

    python docs/run_notebooks.py notebooks/see_the_theorem.md docs/notebooks

A notebook is plain Markdown. Its Python blocks are cells and share their names, its shell block is the cell
that installs; what a cell prints, its last value and its figures are shown below it. The tests run the same
blocks.
"""

import ast
import base64
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

FENCED = re.compile(r"^```(python|sh)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


@dataclass
class Cell:
    """kind: markdown, python or sh. printed and figures, as (SVG, PNG), are what came of it."""

    kind: str
    source: str
    printed: str = ""
    figures: list[tuple[str, bytes]] = field(default_factory=list)


def cells(text: str) -> list[Cell]:
    """The text between blocks, and the blocks."""
    parts = FENCED.split(text)
    found = [Cell("markdown", parts[0])]
    for kind, block, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found += [Cell(kind, block), Cell("markdown", after)]
    return [cell for cell in found if cell.source.strip()]


# ---------------------------------------------------------------------- running


def run(notebook: list[Cell]) -> str:
    """Run the cells one after the other in an empty folder; what is missing here, in words, or nothing."""
    names: dict[str, object] = {"__name__": "__main__"}
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in (cell for cell in notebook if cell.kind == "python"):
                evaluate(cell, names)
        except ImportError as missing:
            return str(missing)
        finally:
            os.chdir(home)
    return ""


def evaluate(cell: Cell, names: dict[str, object]) -> None:
    """Run a cell as Jupyter does: the value of a last expression is shown, and every open figure."""
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    pyplot.close("all")  # what is open was not drawn by this cell
    tree = ast.parse(cell.source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    drawn = [pyplot.figure(number) for number in pyplot.get_fignums()]
    if isinstance(value, Figure):
        drawn.append(value)
    elif value is not None:
        printed.write(f"{value!r}\n")
    cell.printed = printed.getvalue()
    cell.figures = [picture(each) for each in drawn]
    pyplot.close("all")


def picture(figure) -> tuple[str, bytes]:
    """A figure as SVG for the site and as PNG for the notebook, whose viewers trust no SVG."""
    vector, pixels = io.StringIO(), io.BytesIO()
    figure.savefig(vector, format="svg", metadata={"Date": None})
    figure.savefig(pixels, format="png", dpi=110)
    return vector.getvalue(), pixels.getvalue()


# ---------------------------------------------------------------------- writing


def page(notebook: list[Cell], name: str, missing: str) -> tuple[str, dict[str, str]]:
    """The page as Markdown, and its pictures by file name."""
    title, _, rest = notebook[0].source.partition("\n")
    about = f"\n{{download}}`Download this notebook <{name}.ipynb>` to run it in Jupyter.\n"
    if missing:
        about += f"\n*Outputs are not shown: {missing}*\n"
    parts, pictures = [title + "\n", about, on_site(rest)], {}
    for cell in notebook[1:]:
        if cell.kind == "markdown":
            parts.append(on_site(cell.source))
            continue
        parts.append(f"\n```{cell.kind}\n{cell.source}```\n")
        if cell.printed:
            parts.append(f"\n````{{code-block}} text\n:class: output\n\n{cell.printed.rstrip()}\n````\n")
        for svg, _ in cell.figures:
            file = f"{name}-{len(pictures) + 1}.svg"
            pictures[file] = svg
            parts.append(f"\n![What the cell above draws]({file})\n")
    return "".join(parts), pictures


def on_site(text: str) -> str:
    return text.replace("](../docs/", "](../")


def ipynb(notebook: list[Cell]) -> dict[str, object]:
    """The notebook of Jupyter, format 4.4, with its outputs."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": [as_cell(cell, k) for k, cell in enumerate(notebook)],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }


def as_cell(cell: Cell, count: int) -> dict[str, object]:
    if cell.kind == "markdown":
        plain = re.sub(r"\[([^\]]+)\]\((?!http)[^)]*\)", r"\1", cell.source)  # there is nothing beside it
        return {"cell_type": "markdown", "metadata": {}, "source": plain.strip()}
    source = cell.source.rstrip()
    if cell.kind == "sh":
        source = re.sub("^", "%", source, flags=re.MULTILINE) + "\n%matplotlib inline"
    shown = [{"output_type": "stream", "name": "stdout", "text": cell.printed}] if cell.printed else []
    for _, png in cell.figures:
        data = {"image/png": base64.b64encode(png).decode("ascii")}
        shown.append({"output_type": "display_data", "data": data, "metadata": {}})
    number = count if cell.kind == "python" else None
    made = {"cell_type": "code", "execution_count": number, "metadata": {}}
    return made | {"outputs": shown, "source": source}


def main(source: str, out: str) -> None:
    file, folder = Path(source), Path(out)
    notebook = cells(file.read_text(encoding="utf8"))
    missing = run(notebook)
    folder.mkdir(parents=True, exist_ok=True)
    text, pictures = page(notebook, file.stem, missing)
    for name, content in {f"{file.stem}.md": text, **pictures}.items():
        (folder / name).write_text(content, encoding="utf8")
    (folder / f"{file.stem}.ipynb").write_text(json.dumps(ipynb(notebook), indent=1), encoding="utf8")


if __name__ == "__main__":
    main(*sys.argv[1:])
