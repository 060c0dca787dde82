"""Commands of attsvm in this process."""

from typer.testing import CliRunner

from attsvm.cli import app


def run(*words, **terminal):
    """What `attsvm WORDS` printed and how it ended. terminal: such as its charset."""
    return CliRunner(**terminal).invoke(app, [str(word) for word in words])
