"""How a code block of a page is run; Sybil finds the blocks, page by page.

Python blocks run one after the other in an empty folder; a `text` block below one is what it printed. A
block says in a comment what it needs (`# needs attsvm[hf] and the package …`), and why it is not run here, if
it is not (`# … not run in the tests: …`). Shell blocks of the tutorials (docs/start) run, `attsvm` in this
process; elsewhere their commands, options and files must exist.
"""

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from sybil.evaluators.doctest import DocTestEvaluator
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.abstract.doctest import DocTestStringParser
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "sklearn": ("sklearn",),
    "dask": ("dask.array", "distributed"),
    "lab": ("pyarrow", "matplotlib"),
    "torch": ("torch",),
    "hf": ("torch", "transformers", "accelerate"),
}


class Python(PythonCodeBlockParser):
    """Python blocks: run as they are, or as a doctest where they begin with a prompt."""

    def __init__(self):
        self.codeblock_parser = CodeBlockParser("python", run)
        self.doctest_parser = DocTestStringParser(doctest)


def run(example):
    skip_if_missing(str(example.parsed), example.namespace)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        PythonEvaluator()(example)
    example.namespace["_printed"] = printed.getvalue()


def doctest(example):
    skip_if_missing(example.parsed.source, example.namespace)
    return DocTestEvaluator()(example)


def skip_if_missing(source, namespace):
    """Skip a block that is marked, and from one whose extra is missing on, all of the page."""
    if marked := re.search("not run in the tests: (.*)", source):
        pytest.skip(marked[1])
    needs = {f"attsvm[{name}]": EXTRAS[name] for name in re.findall(r"# needs attsvm\[(\w+)\]", source)}
    needs |= {name: (name,) for name in re.findall(r"# needs .*the package (\w+)", source)}
    for need, modules in needs.items():
        for module in modules:
            try:
                pytest.importorskip(module)
            except pytest.skip.Exception:
                namespace["_missing"] = f"needs {need}"
    if "_missing" in namespace:
        pytest.skip(namespace["_missing"])


def printed(example):
    """What the block above printed, up to numbers of the size of rounding."""
    skip_if_missing("", example.namespace)
    if "_printed" not in example.namespace:
        return "no block above this one printed anything"
    said, shown = words(example.namespace["_printed"]), words(str(example.parsed))
    return None if said == shown else f"printed: {' '.join(said)}\nshown:   {' '.join(shown)}"


def words(text):
    """The text without its rounding-sized numbers, which differ between machines."""
    return re.sub(r"\d\.\de-\d\d|0\.0e\+00", "tiny", text).split()


# ---------------------------------------------------------------------- commands and studies


def commands(example):
    """Shell lines: run on a tutorial's page, read on others."""
    source = re.sub(
        r"<<'(\w+)'\n.*?\n\1\n", "\n", str(example.parsed), flags=re.DOTALL
    )  # scripts given inline
    lines = [shlex.split(line, comments=True) for line in source.splitlines()]
    wrong = [fault for line in lines if line and (fault := read(line))]
    if wrong:
        return "; ".join(wrong)
    if Path(example.path).parent.name == "start":
        skip_if_missing("", example.namespace)
        from attsvm.cli import app

        for line in (line for line in lines if line[:1] == ["attsvm"]):
            done = CliRunner().invoke(app, line[1:])
            if done.exit_code:
                return f"{shlex.join(line)} ended with {done.exit_code}: {done.output}"
    return None


def read(line):
    """What is wrong with a command: an unknown name, option, target or file."""
    from attsvm.cli import app

    program, *rest = line
    options = [word.split("=")[0] for word in rest if word.startswith("--")]
    if program == "attsvm":
        known = typer.main.get_command(app)
        command = known.commands.get(rest[0]) if rest and not rest[0].startswith("-") else known
        if command is None:
            return f"no command attsvm {rest[0]}"
        names = {name for p in command.params for name in [*p.opts, *p.secondary_opts]} | {"--help"}
        return next((f"attsvm {rest[0]} has no {name}" for name in options if name not in names), None)
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE)
        return next((f"make has no {word}" for word in rest if "=" not in word and word not in targets), None)
    if program == "python" and rest and rest[0].endswith(".py"):
        return None if (ROOT / rest[0]).exists() else f"no file {rest[0]}"
    return None if program in ("bash", "git", "head", "pip", "python") else f"unknown program {program}"


def study(example):
    """A TOML block is a study that `attsvm sweep` accepts."""
    skip_if_missing("# needs attsvm[lab]", {})
    from attsvm_lab.sweeps.study import read_study

    read_study(tomllib.loads(str(example.parsed)))
