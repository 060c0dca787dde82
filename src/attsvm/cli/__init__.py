"""The command line: parsing and printing only, one file per command.

app.py has the app, what commands print, their exit codes, and the commands of other packages, which join by
entry points; files.py reads problems and checks the files to write.
"""

from attsvm.cli import explore, heads, show, solve, train
from attsvm.cli.app import Command, app, other_commands

app.command(cls=Command)(solve.solve)
app.command(cls=Command)(train.train)
app.command(cls=Command)(show.show)
app.command(cls=Command)(heads.heads)
app.command(cls=Command)(explore.explore)
for _name, _command in other_commands().items():
    app.command(_name, cls=Command)(_command)

__all__ = ["app"]
