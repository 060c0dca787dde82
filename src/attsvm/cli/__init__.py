"""The command line: parsing and printing only, one file per command; `app.main` lists the exit codes."""

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
