"""Train one network:  python lab/experiments/run.py sentiment --size 3 --optimizer mirror:1.1 --seed 0

Tasks: sentiment (IMDB; size k is k blocks of k heads), vision (CIFAR-10, 48 px, patch 4), patches (CIFAR-10,
2 × 2 patches, T = 256, a smaller net), language (the next token of IMDB; an epoch is a stretch of
batches, longer than the one before), digits (scikit-learn's, a minute on a laptop). README.md tells more.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch

from data import Images, MissingData, Reviews, images, reviews, sentences
from fused import fusing_works
from language import Language, LanguageLook
from looks import ImageLook, TextLook
from tasks import Sentiment, Vision, order
from training import ONLY, Settings, train

PATCHES = {"side": 32, "patch": 2, "width": 192, "depth": 6, "heads": 3, "hidden": 384}
DIGITS = {"border": 0, "side": 8, "patch": 2, "width": 32, "depth": 2, "heads": 2, "hidden": 64}
UNTIL = 0.995
"""The train accuracy at which a training on reviews ends."""
HELD_OUT, CUT = 8, 48
"""So many test reviews, cut to so many tokens, are what the heads are judged on."""


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    options = parsed(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False  # looks are in plain float32
    try:
        task, look = made(options, device)
    except MissingData as error:
        sys.exit(str(error))
    rate = task.step(options.optimizer) if options.lr is None else options.lr
    half = device.type == "cuda" if options.half is None else options.half
    out = (
        options.out
        or Path("out") / f"{options.task}{options.size}-{options.optimizer.replace(':', '')}-{options.seed}"
    )
    start = None if options.start is None else weights_of(options.start, out)
    kinds = [name for name in ("selective", "unmasked") if getattr(options, name)]
    task_name = " ".join([options.task, *kinds])
    fused = half and device.type == "cuda" and (not task.compiled or fusing_works())
    settings = Settings(
        task_name,
        options.size,
        options.optimizer,
        rate,
        options.seed,
        options.epochs,
        UNTIL if options.task == "sentiment" else math.inf,
        half,
        fused,
        options.enough,
        options.init,
        None if start is None else named(start),
        options.only,
    )
    deadline = min(options.deadline, math.inf if options.seconds is None else time.time() + options.seconds)
    records = train(
        task,
        settings,
        out,
        look=look,
        save_every=options.save_every,
        deadline=deadline,
        every=options.every,
        late=options.late,
        start=start,
    )
    best = max((record.get("test_accuracy", 0.0) for record in records[1:]), default=math.nan)
    print(f"{out}: {records[-1]['epoch']} epochs, best test accuracy {best:.4f}")
    return records


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("sentiment", "vision", "patches", "language", "digits"))
    parser.add_argument("--size", type=int, default=3, help="blocks and heads of the sentiment encoder")
    parser.add_argument("--selective", action="store_true", help="a learned temperature per query")
    parser.add_argument("--unmasked", action="store_true", help="padding is text, the mean of all is read")
    parser.add_argument("--optimizer", default="mirror:1.1", help="by its name in optimizers.py")
    parser.add_argument("--lr", type=float, help="step; default: the published one, or tasks.OUR_STEPS")
    parser.add_argument("--seed", type=int, default=0, help="initial weights, order and dropout")
    parser.add_argument("--init", type=int, help="the initial weights of another seed: trials share them")
    parser.add_argument("--from", dest="start", type=Path, help="begin with a training's weights: its folder")
    parser.add_argument("--only", choices=ONLY, help="train these weights only")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--enough", type=float, default=0.0, help="or at this train loss, within an epoch")
    parser.add_argument(
        "--data", type=Path, default=Path("out/data"), help="folder of lab/experiments/data.py"
    )
    parser.add_argument("--out", type=Path, help="folder of this training; the same call goes on from it")
    parser.add_argument("--seconds", type=float, help="stop after so long; the same call goes on")
    parser.add_argument("--deadline", type=float, default=math.inf, help="stop at this time.time()")
    parser.add_argument("--save-every", type=float, default=100.0, help="seconds between checkpoints")
    parser.add_argument("--keep", type=int, nargs="*", default=(), help="epochs whose heads or maps are kept")
    parser.add_argument("--rows", type=int, help="only so many examples of each half, for a try")
    parser.add_argument("--half", action=argparse.BooleanOptionalAction, help="bfloat16; default on a GPU")
    parser.add_argument(
        "--every", type=int, default=1, help="after ten epochs, test and look at every so many"
    )
    parser.add_argument("--late", type=float, default=math.inf, help="and a fifth of these after so many")
    return parser.parse_args(arguments)


def weights_of(folder: Path, out: Path) -> Path:
    """The checkpoint of a training, whose folder is given by its path or by its name beside `out`."""
    places = [place / "checkpoint.safetensors" for place in (folder, out.parent / folder)]
    for file in places:
        if file.is_file():
            return file
    sys.exit(
        f"no training in {places[0].parent} or {places[1].parent}. --from takes one that was run before."
    )


def named(file: Path) -> str:
    """A checkpoint by its training and its digest."""
    return f"{file.parent.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:10]}"


def made(options: argparse.Namespace, device: torch.device) -> tuple[Any, Any]:
    """The task and the look into its model."""
    if options.task == "sentiment":
        halves = some(reviews(options.data), options.rows)
        ids, places = (x.to(device) for x in sentences(options.data))
        text_look = TextLook(held_out(halves[1]).to(device), ids, places, frozenset(options.keep))
        kinds = {"selective": options.selective, "unmasked": options.unmasked}
        return Sentiment(halves, options.size, device, **kinds), text_look
    if options.task == "language":
        batch_size = {} if options.rows is None else {"batch": 4}
        spoken = Language(some(reviews(options.data), options.rows), device, **batch_size)
        return spoken, LanguageLook.of(spoken, frozenset(options.keep))
    if options.task == "digits":
        task = Vision(some(digits(), options.rows), device, **DIGITS)
    else:
        sizes = PATCHES if options.task == "patches" else {}
        task = Vision(some(images(options.data), options.rows), device, **sizes)
    return task, ImageLook(task.prepared(task.test.pixels[:64], torch.float32), frozenset(options.keep))


def some(halves: Any, rows: int | None) -> Any:
    """Both halves, or a few of each, drawn with a fixed seed: the files are sorted by class."""
    if rows is None:
        return halves
    drawn = [order(len(split), 0, 0)[:rows] for split in halves]
    if isinstance(halves[0], Reviews):
        return tuple(split.take(rows_of) for split, rows_of in zip(halves, drawn, strict=True))
    return tuple(
        Images(split.pixels[rows_of], split.labels[rows_of])
        for split, rows_of in zip(halves, drawn, strict=True)
    )


def held_out(test: Reviews) -> torch.Tensor:
    """Padded ids of the first tokens of a few fixed test reviews."""
    held_out_rows = test.take(order(len(test), 0, 1)[:HELD_OUT])
    rows = [
        held_out_rows.ids[a:b][:CUT].long()
        for a, b in zip(held_out_rows.offsets[:-1], held_out_rows.offsets[1:], strict=True)
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def digits() -> tuple[Images, Images]:
    """scikit-learn's 1,797 digits of 8 × 8 pixels, the last 297 as test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = torch.from_numpy((255 / 16 * digits.images[:, None]).astype("uint8"))
    labels = torch.from_numpy(digits.target).long()
    return Images(pixels[:1500], labels[:1500]), Images(pixels[1500:], labels[1500:])


if __name__ == "__main__":
    main()
