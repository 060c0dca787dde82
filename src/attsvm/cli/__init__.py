"""The command line: parsing and printing only, one file per command.

Exit codes: 0 as wished, 1 bad input, a derived number that differs or a run that diverged, 2 not separable,
3 solved but not certified, 64 wrong usage (command, option or word), 130 stopped by Ctrl-C,
143 by SIGTERM, which keeps what Ctrl-C keeps.
"""

from attsvm.cli import claims, explore, heads, reproduce, show, solve, sweep, train
from attsvm.cli.app import app

app.command()(solve.solve)
app.command()(train.train)
app.command()(show.show)
app.command()(reproduce.reproduce)
app.command()(claims.claims)
app.command()(sweep.sweep)
app.command()(heads.heads)
app.command()(explore.explore)

__all__ = ["app"]
