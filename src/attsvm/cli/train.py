"""attsvm train: train attention on a file and keep the path."""

from __future__ import annotations

from pathlib import Path as File
from typing import Annotated, Any

import numpy as np
import typer

from attsvm.cli.app import AsJson, say, say_json
from attsvm.cli.files import one_line_errors, out_file, read_problem
from attsvm.cli.words import WrongWord, norm_of, one_of
from attsvm.norms import Entrywise, Norm
from attsvm.path import Path


def train(
    file: Annotated[File, typer.Argument(help="keys and the head v; any of queries, labels, mask, values.")],
    optimizer: Annotated[str, typer.Option(help="steepest, gd, mirror or polyak.")] = "steepest",
    norm: Annotated[str, typer.Option(help="Of steepest and mirror: frobenius, linf, lp:3, …")] = "frobenius",
    lr: Annotated[float, typer.Option(help="Step length.")] = 0.1,
    steps: Annotated[int, typer.Option(help="Number of steps.", min=1)] = 2_000,
    weight: Annotated[str, typer.Option(help="full (W), kq (K and Q) or diagonal.")] = "full",
    loss: Annotated[str, typer.Option(help="logistic, exponential or linear.")] = "logistic",
    out: Annotated[File | None, typer.Option(help="Write the path to this .npz file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train softmax attention on the tokens of a file, and keep the path of its weights.

    Steepest descent in a norm is normalised gradient descent (frobenius), sign descent (linf), Muon's
    direction (spectral) or coordinate descent (l1). W starts at zero, K and Q at a fixed draw.

    Examples

    - `attsvm train problem.npz --steps 20000 --out run.npz`
    - `attsvm solve run.npz`: the program of the tokens that the run attends to
    - `attsvm train problem.npz --optimizer mirror --norm lp:3 --weight full`
    - `attsvm train problem.npz --weight kq --loss exponential --json`

    Exit code 0, 1 on bad input, 64 on wrong usage.
    """
    from attsvm.training.heads import Linear
    from attsvm.training.train import train as descend

    with one_line_errors():
        out = out and out_file(out, ".npz")
        problem = read_problem(file)
        path = descend(
            problem.tokens,
            Linear(problem.head()),
            weight=_weight(weight),
            loss=_loss(loss),
            optimizer=_optimizer(optimizer, norm_of(norm), lr),
            steps=steps,
        )
        if out is not None:
            path.save(out)
    if as_json:
        say_json(path_record(path) | ({} if out is None else {"path": out}))
    else:
        say(path)
        say(f"least attention on the selected tokens: {_least_mass(path):.6g}")
        if out is not None:
            say(f"path: {out}")


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


def _optimizer(word: str, norm: Norm, lr: float) -> Any:
    from attsvm.training import optimizers

    known = {
        "steepest": lambda: optimizers.steepest(norm, lr),
        "gd": lambda: optimizers.gd(lr),
        "mirror": lambda: optimizers.mirror(_exponent(norm), lr),
        "polyak": lambda: optimizers.polyak(),
    }
    return one_of("optimizer", word, known)()


def _exponent(norm: Norm) -> float:
    if not isinstance(norm, Entrywise):
        raise WrongWord(f"mirror descent has an entrywise norm, not the {norm} one. Pass --norm lp:P, P > 1.")
    return norm.p


def _weight(word: str) -> Any:
    from attsvm.training import weights

    known = {"full": weights.FullWeight(), "kq": weights.KeyQuery(), "diagonal": weights.Diagonal()}
    return one_of("weight", word, known)


def _loss(word: str) -> Any:
    from attsvm.training import losses

    known = {"logistic": losses.logistic, "exponential": losses.exponential, "linear": losses.linear}
    return one_of("loss", word, known)
