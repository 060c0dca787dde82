"""The site: `make docs` builds it, and every warning is an error."""

import importlib.util
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attsvm
from attsvm._support.pages import RAISED
from attsvm.explorer.page import page as explorer_page
from attsvm_lab.sweeps.atlas import page as atlas_page

KEPT = {".html", ".json", ".svg", ".npz"}
HERE = Path(__file__).parent
ROOT = HERE.parent
ATLAS = ROOT / "lab" / "records" / "atlas.json"

project = "attsvm"
author = "The attsvm authors"
copyright = "the attsvm authors, BSD-3-Clause"
version = release = attsvm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "attsvm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("versions.js", "sort.js")]
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("ArrayLike", "Float", "Bool", "Ids", "Seed")}
python_maximum_signature_line_length = 90
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
# What is an extra may be missing: its pages are built all the same.
EXTRAS = ("torch", "transformers", "sklearn", "safetensors", "pyarrow", "dask", "distributed")
autodoc_mock_imports = [name for name in EXTRAS if importlib.util.find_spec(name) is None]


def as_text(app, what, name, obj, options, lines):
    """Our docstrings are plain text: formulas are indented, arguments begin a line with their names."""
    known, shown, before = arguments(obj), [], ""
    for line in lines:
        indented, text = line.startswith("    "), line.strip()
        if indented and (not before.strip() or before.endswith(":") or before.startswith("    ")):
            formula = (shown and shown[-1].startswith("    ")) or before.startswith("    ")
            shown += [line] if formula else ["", "::", "", line]
        elif indented:  # a line goes on
            shown[-1] += f" {plain(text)}"
            line = "continued"
        else:
            named = re.match(r"(\w+(?:, \w+)*): ", text)
            if named and set(named[1].split(", ")) <= known:
                text = f"- **{named[1]}**: " + plain(text[named.end() :])
                shown += [text] if shown and shown[-1].startswith("- **") else ["", text]
            elif text and shown and shown[-1].startswith("- **") and before.strip():
                shown[-1] += f" {plain(text)}"
            else:
                shown += ["", plain(text)] if before.startswith(("    ", "- ")) and text else [plain(text)]
        before = line
    lines[:] = [*shown, ""]


def short_types(app, what, name, obj, options, signature, returned):
    """Aliases by their names: ArrayLike | None."""
    alias = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
    return (alias.sub(r"\1", signature), returned and alias.sub(r"\1", returned)) if signature else None


def arguments(obj):
    """The names of a function's or a record's arguments."""
    try:
        return set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        return set()


def plain(text):
    """Stars, bars and underscores are no markup, except in code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*|_])", r"\\\1", part) for part in parts[::2]]
    return "``".join(parts)


def exponents(app, doctree):
    """W^mm in plain text, headings included: what follows ^ is raised."""
    from docutils import nodes

    def raised(text):
        parts, end = [], 0
        for match in RAISED.finditer(text):
            inside = next(filter(None, match.groups()), "")
            parts += [nodes.Text(text[end : match.start()]), nodes.superscript(inside, "", *raised(inside))]
            end = match.end()
        return [*parts, nodes.Text(text[end:])]

    kept = (nodes.literal, nodes.FixedTextElement, nodes.raw)
    for text in [each for each in doctree.findall(nodes.Text) if "^" in each]:
        if not isinstance(text.parent, kept):
            text.parent.replace(text, raised(text))


def breaks(app, page, template, context, doctree):
    """Code goes on in the next line after an underscore, and not in the middle of a word."""
    for part in ("body", "toc"):
        pieces = re.split(r'(<span class="pre">[^<]*)', context.get(part) or "")
        pieces[1::2] = [piece.replace("_", "_<wbr>") for piece in pieces[1::2]]
        context[part] = "".join(pieces)


def beside(app):
    """The explorer, the atlas, and the last report of `attsvm reproduce` with what it links to: live/."""
    live = Path(app.outdir) / "live"
    live.mkdir(parents=True, exist_ok=True)
    (live / "explorer.html").write_text(explorer_page(), encoding="utf8")
    (live / "atlas.html").write_text(
        atlas_page(json.loads(ATLAS.read_text(encoding="utf8"))), encoding="utf8"
    )
    for file in (file for file in (ROOT / "out").glob("*.*") if file.suffix in KEPT):
        shutil.copyfile(file, live / file.name)


def notebooks(app):
    """Run notebooks/*.md, two at once and each in a process of its own, into the pages of notebooks/ here."""
    from sphinx.errors import ExtensionError

    def run(file):
        command = [sys.executable, HERE / "run_notebooks.py", file, HERE / "notebooks"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"MPLBACKEND": "agg"})
        if done.returncode:
            raise ExtensionError(f"{file.name} does not run:\n{done.stderr}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, sorted((ROOT / "notebooks").glob("*.md"))))


def setup(app):
    app.connect("autodoc-process-docstring", as_text)
    app.connect("autodoc-process-signature", short_types)
    app.connect("builder-inited", beside)
    app.connect("builder-inited", notebooks)
    app.connect("doctree-read", exponents, priority=100)  # before the contents are collected
    app.connect("html-page-context", breaks)
