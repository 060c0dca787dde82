"""The command line: parsing and printing only, one file per command; `app.main` lists the exit codes."""

from attsvm.cli import explore, heads, plugins, show, solve, train
from attsvm.cli.app import app

app.command()(solve.solve)
app.command()(train.train)
app.command()(show.show)
app.command()(heads.heads)
app.command()(explore.explore)
for _name, _command in plugins.commands().items():
    app.command(_name)(_command)

__all__ = ["app"]
