"""The site: `make docs` builds it, and every warning is an error."""

import importlib.util
import shutil
from pathlib import Path

import attsvm
from attsvm.explorer.page import page as explorer_page

KEPT = {".html", ".json", ".svg", ".npz"}
HERE = Path(__file__).parent
ROOT = HERE.parent

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
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
pygments_style = "friendly"
pygments_dark_style = "monokai"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
# What is an extra may be missing: its pages are built all the same.
EXTRAS = ("torch", "transformers", "sklearn", "safetensors", "pyarrow", "dask", "distributed")
autodoc_mock_imports = [name for name in EXTRAS if importlib.util.find_spec(name) is None]


def as_text(app, what, name, obj, options, lines):
    """Docstrings are plain text with formulas set off by indentation: quote what is indented."""
    shown, inside = [], False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not inside:
            shown += ["", "::", ""]
        if not indented and inside and line.strip():
            shown.append("")
        inside = indented or (inside and not line.strip())
        # RST would read a trailing underscore or a lone star or bar as markup.
        shown.append(line if indented else plain(line))
    lines[:] = shown


def plain(line):
    for sign in ("*", "|", "_"):
        line = line.replace(sign, f"\\{sign}")
    return line.replace("`", "``")


def beside(app):
    """The explorer, and the report that `attsvm reproduce` wrote last with what it links to: live/."""
    live = Path(app.outdir) / "live"
    live.mkdir(parents=True, exist_ok=True)
    (live / "explorer.html").write_text(explorer_page(), encoding="utf8")
    for file in (file for file in (ROOT / "out").glob("*.*") if file.suffix in KEPT):
        shutil.copyfile(file, live / file.name)


def setup(app):
    app.connect("autodoc-process-docstring", as_text)
    app.connect("builder-inited", beside)
