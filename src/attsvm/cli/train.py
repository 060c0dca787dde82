"""attsvm train: train attention on a file and keep the path."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path as File
from typing import Annotated, Any, NoReturn, get_type_hints

import numpy as np
import typer

from attsvm._support.ctrl_c import ignoring_ctrl_c
from attsvm._support.options import BadOption
from attsvm.cli.app import INTERRUPTED, AsJson, say, say_json, stop
from attsvm.cli.files import one_line_errors, out_file, read_problem
from attsvm.cli.settings import ASKS, OPTIONS, Settings, asks
from attsvm.data.path import Path
from attsvm.numbers.files import naming

CHECKPOINT = 600.0
"""Seconds between two saves: the most work that a killed run loses."""


def train(
    file: Annotated[File, typer.Argument(help="keys and the head v; any of queries, labels, mask, values.")],
    optimizer: Annotated[
        str | None, typer.Option(help="steepest (default), gd, mirror, polyak or adam.")
    ] = None,
    norm: Annotated[str | None, typer.Option(help="frobenius (default), linf, lp:3, …")] = None,
    lr: Annotated[float | None, typer.Option(help="Step length, by default 0.1.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of steepest, say 0.9.")] = None,
    decay: Annotated[float | None, typer.Option(help="Of steepest and adam, say 0.01.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps in all, by default 2000.", min=1, metavar="<int>")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Examples per step, by default all.", min=1, metavar="<int>")
    ] = None,
    weight: Annotated[str | None, typer.Option(help="full (default), kq or diagonal.")] = None,
    loss: Annotated[str | None, typer.Option(help="logistic (default), exponential, correlation.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="End where 1 − cosine changes less, say 1e-8.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Draw of the start and the batches.", min=0, metavar="<int>")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with FILE, a run kept by --out.")] = False,
    out: Annotated[File | None, typer.Option(help="Write the path to this .npz file.")] = None,
    checkpoint: Annotated[
        float, typer.Option(help="Seconds between writes of --out; 0: at the end.", min=0, metavar="<float>")
    ] = CHECKPOINT,
    as_json: AsJson = False,
) -> None:
    """Train attention on the tokens of a file, and keep its path.

    Steepest descent in a norm is normalised gradient descent (frobenius), sign descent (linf), Muon's
    direction (spectral) or coordinate descent (l1). W starts at zero, K and Q at a fixed draw, or all of them
    at the draw of `--seed`. `--tolerance` ends a run whose direction no longer changes.
    Ctrl-C and SIGTERM end a run within a second: `--out` keeps the path up to there, as it does every ten
    minutes on the way, and `--resume` goes on to what the run would have been.

    Examples

    - `attsvm train problem.npz --steps 20000 --out run.npz`
    - `attsvm train run.npz --resume --steps 40000`: on to 40,000 steps, with the same settings
    - `attsvm solve run.npz`: the program of the tokens that the run attends to
    - `attsvm train problem.npz --optimizer mirror --norm lp:3 --weight full`
    - `attsvm train problem.npz --weight kq --loss exponential --json`
    - `attsvm train problem.npz --optimizer adam --lr 0.01 --seed 3 --tolerance 1e-8`
    - `attsvm train problem.npz --norm linf --momentum 0.9 --decay 0.01 --batch 4`: Signum, in mini-batches
    - `attsvm train problem.npz --steps 10000000 --out run.npz --checkpoint 60`: a kill costs a minute

    Exit code 0, 1 on bad input or where the run diverged (the path is kept), 64 on wrong usage, 130
    after Ctrl-C, 143 after SIGTERM.
    """
    options = {"optimizer": optimizer, "norm": norm, "lr": lr, "weight": weight, "loss": loss, "steps": steps}
    options |= {"momentum": momentum, "decay": decay, "batch": batch, "tolerance": tolerance, "seed": seed}
    options = {name: value for name, value in options.items() if value is not None}
    out = file if resume and out is None else out
    with one_line_errors():
        out = out and out_file(out, ".npz", source=None if resume else file)
        if resume:
            settings, saved, v = _load_run(file, options)
            path = _run(saved.tokens, v, settings, saved, out, checkpoint)
        else:
            settings, problem = _settings_of(options), read_problem(file)
            path = _run(problem.tokens, problem.head(), settings, None, out, checkpoint)
    with np.errstate(over="ignore"):  # the norm of a run that diverged
        record = path_record(path) | ({} if out is None else {"path": out})
        if not as_json:
            say(path)
            say(f"least attention on the selected tokens: {_least_mass(path):.6g}")
            if out is not None:
                say(f"path: {out}")
    diverged = np.asarray(path.stopped) == "diverged"
    if diverged.any():
        runs = f"{diverged.sum()} of {diverged.size} runs" if diverged.ndim else "the run"
        stop(f"{runs} diverged; the last finite weight is kept. Pass a smaller --lr.", **record)
    if as_json:
        say_json(record)


def path_record(path: Path) -> dict[str, Any]:
    """The path in numbers; with runs, lists."""
    return {
        "kind": path.kind,
        "records": len(path.index),
        "last": float(path.index[-1]),
        "shape": list(path.W.shape),
        "norm": path.norm()[..., -1].tolist(),
        "loss": path.loss[..., -1].tolist(),
        "stopped": np.asarray(path.stopped).tolist(),
        "selected": np.argmax(path.selected, axis=-1).tolist(),
        "least_mass": _least_mass(path),
    }


def _least_mass(path: Path) -> float:
    last = path.attention[..., -1, :, :]
    return float(np.where(path.selected, last, 0.0).sum(-1).min())


def _run(
    tokens: Any, v: Any, settings: RunSettings, saved: Path | None, out: File | None, checkpoint: float
) -> Path:
    """Train, and save the path: at the end, every `checkpoint` seconds, and after Ctrl-C."""
    try:
        from attsvm.training.prediction_heads import Linear
        from attsvm.training.segments import Paused, pausing
        from attsvm.training.train import train as descend

        arguments = settings.arguments()
        while True:
            start = {} if saved is None else {"init": None}
            try:
                with pausing(checkpoint if out is not None and checkpoint > 0 else math.inf):
                    path = descend(tokens, Linear(v), resume=saved, **arguments | start)
                break
            except Paused as pause:
                saved = pause.path
                _save(saved, settings, v, out)
    except KeyboardInterrupt as interrupt:
        partial: Path | None = getattr(interrupt, "path", None)
        with ignoring_ctrl_c():  # a second one must not lose the path
            _save(partial, settings, v, out)
        _interrupted(partial, settings, out)
    _save(path, settings, v, out)
    return path


def _save(path: Path | None, settings: RunSettings, v: Any, out: File | None) -> None:
    """Save a path with its settings and head, from which `_load_run` continues."""
    if path is not None and out is not None:
        state = {"settings": np.array(json.dumps(asdict(settings))), "head": np.asarray(v)}
        path.changed(state={**(path.state or {}), **state}).save(out)


def _interrupted(path: Path | None, settings: RunSettings, out: File | None) -> NoReturn:
    if path is None:
        stop("interrupted before the first step.", INTERRUPTED)
    message = f"interrupted after {path.index[-1]:,} of {settings.steps:,} steps"
    if out is None:
        stop(f"{message}. Nothing is kept: pass --out FILE to keep the path.", INTERRUPTED)
    stop(f"{message}. Go on from there: attsvm train {out} --resume", INTERRUPTED)


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True)
class RunSettings(Settings):
    """The settings of a run: those of a study, the tolerance, and the seed of its start and its batches."""

    tolerance: float | None = None
    seed: int | None = None

    def arguments(self) -> dict[str, Any]:
        from attsvm.training.batches import Batches
        from attsvm.training.init import uniform

        start = None if self.seed is None else uniform(self.seed)
        batch = Batches(self.batch, self.seed or 0) if self.batch else None
        return super().arguments() | {"tolerance": self.tolerance, "init": start, "batch": batch}


def _settings_of(options: Mapping[str, Any]) -> RunSettings:
    """The settings of these options. Raises for an option without effect."""
    settings = RunSettings(**options)
    accepted = asks(settings.optimizer)
    for name in OPTIONS:
        if name in options and name not in accepted:
            optimizers = " or ".join(optimizer for optimizer, names in ASKS.items() if name in names)
            raise BadOption(
                f"--{name} has no effect with --optimizer {settings.optimizer}. Drop it, or pass "
                f"--optimizer {optimizers}."
            )
    return settings


def _load_run(file: File, options: Mapping[str, Any]) -> tuple[RunSettings, Path, Any]:
    """The settings, path and head of a saved run; of the options only `steps` may change."""
    path = Path.load(file)
    if path.state is None or not {"settings", "head"} <= path.state.keys():
        raise ValueError(
            f"{file} is no run of attsvm train. Go on in Python: attsvm.train(…, resume=Path.load(file))."
        )
    for name in options.keys() - {"steps"}:
        raise BadOption(f"--{name} cannot change with --resume: the run keeps its own. Drop it.")
    with naming(file):
        settings = replace(read_settings(str(path.state["settings"])), **options)
    if settings.steps <= path.index[-1]:
        raise ValueError(f"{file} has taken {path.index[-1]} steps. Pass --steps with a larger number.")
    return settings, path, path.state["head"]


def read_settings(text: str) -> RunSettings:
    """The settings that `_save` wrote, with their types checked."""
    try:
        settings = RunSettings(**json.loads(text))
        kinds = get_type_hints(RunSettings).items()
        if not all(isinstance(getattr(settings, name), kind) for name, kind in kinds):
            raise TypeError
    except (ValueError, TypeError):
        raise ValueError("the settings of the run are damaged. Train again.") from None
    return settings
