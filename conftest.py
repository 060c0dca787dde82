"""Every code block of README, docs and notebooks is a test: Sybil finds them, tests/pages.py runs them."""

import os
import tempfile

import tests.conftest  # noqa: F401 (its settings are for the pages too)

try:
    from sybil import Sybil
    from sybil.parsers.markdown import CodeBlockParser
    from tests import pages
except ModuleNotFoundError:  # the tests themselves need no Sybil
    Sybil = None


def begin(namespace):
    """A page runs in an empty folder, and later blocks know what earlier ones defined."""
    folder = tempfile.TemporaryDirectory()
    namespace.update(__name__="page", _home=os.getcwd(), _folder=folder)
    os.chdir(folder.name)


def end(namespace):
    os.chdir(namespace["_home"])
    namespace["_folder"].cleanup()


if Sybil is not None:
    pytest_collect_file = Sybil(
        parsers=[
            pages.Python(),
            CodeBlockParser("text", pages.printed),
            CodeBlockParser("sh", pages.commands),
            CodeBlockParser("toml", pages.study),
        ],
        patterns=["README.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/*.md", "notebooks/*.md"],
        excludes=["docs/notebooks/*.md"],  # written by the site from notebooks/
        setup=begin,
        teardown=end,
    ).pytest()
