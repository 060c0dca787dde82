"""The README's example runs and prints what the README shows."""

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf8")


def block(language):
    return re.search(rf"```{language}\n(.*?)```", README, flags=re.DOTALL).group(1)


def words(text):
    """The text without its rounding-sized numbers, which differ between machines."""
    return re.sub(r"\d\.\de-\d\d|0\.0e\+00", "tiny", text).split()


def test_the_example_prints_what_the_readme_shows():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block("python"), {})
    assert words(printed.getvalue()) == words(block("text"))
