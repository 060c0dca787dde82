"""The command line: parsing and printing only, one file per command.

app.py has the app, what commands print, their exit codes, and the commands of other packages, which join by
entry points; files.py reads problems and checks the files to write.
"""

from attsvm.cli import explore, heads, show, solve, train
from attsvm.cli.app import app, other_commands

app.command()(solve.solve)
app.command()(train.train)
app.command()(show.show)
app.command()(heads.heads)
app.command()(explore.explore)
for _name, _command in other_commands().items():
    app.command(_name)(_command)

__all__ = ["app"]
