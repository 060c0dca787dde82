"""One training: epochs, a record for each, and checkpoints from which it goes on bit for bit.

A folder holds `records.jsonl` (one line per epoch), `checkpoint.safetensors` (weights, optimizer state and
random number states of the last saved epoch), `about.json` (settings, machine, versions), and looks.
"""

from __future__ import annotations

import json
import math
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from added import Added, measures, shape_of
from attsvm._support.progress import ProgressLine
from attsvm.numbers.atomic_write import replacing
from fused import fuse
from optimizers import Together, optimizer
from steps import Steps
from summary import commit

FILL = 1000
"""Lines of tokens are filled up to a multiple of this for recorded steps: eleven shapes, two percent more."""
EARLY, RARER = 10, 5
"""So many first epochs are all tested, whatever `every` says; late ones so many times less often."""


@dataclass(frozen=True)
class Settings:
    """What decides a training's numbers; a folder holds one training only.

    task, size: what is trained. until: stop once the train accuracy reaches it. epochs: or after so many.
    enough: or within an epoch, once the mean loss of some batches is no larger. init: the seed of the initial
    weights where it is not `seed`, so that trials can share them, as the published ones do. start: the
    weights to begin with, by name and digest, where they are another training's. only: the weights that are
    trained, where not all are (`ONLY`); the others stay as they are, and no dropout disturbs them.
    half: compute in bfloat16 (weights and optimizer stay in float32). fused: in compiled kernels
    and recorded steps (`fused.py`, `steps.py`), whose dropout draws other random numbers.
    """

    task: str
    size: int
    optimizer: str
    lr: float
    seed: int = 0
    epochs: int = 1000
    until: float = 0.995
    half: bool = False
    fused: bool = False
    enough: float = 0.0
    init: int | None = None
    start: str | None = None
    only: str | None = None


ONLY = ("last-query-key", "last-query-key-head")
"""W_Q and W_K of the last block, alone or with the linear head on the class token: the tokens that the heads
of this block see are then fixed, as in the theory."""


class Look(Protocol):
    """Looks into a model: after a tested epoch for its record, and once at the end for last.json."""

    def __call__(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]: ...

    def last(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]: ...


def train(
    task: Any,
    settings: Settings,
    folder: Path,
    *,
    look: Look | None = None,
    save_every: float = 30.0,
    deadline: float = math.inf,
    every: int = 1,
    late: float = math.inf,
    start: Path | None = None,
) -> list[dict[str, Any]]:
    """Train until the train accuracy, the number of epochs or the deadline (seconds of time.time()).

    Records of all epochs, with a test and a look after the first ten, every `every`-th, after `late` epochs a
    fifth of these, and the last of a training that reached its end. The same call goes on after the last
    checkpoint; other settings are refused. start: the checkpoint of another training, whose weights are the
    first ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _same(folder, settings, task)
    torch.manual_seed(settings.seed if settings.init is None else settings.init)
    model = task.make().to(task.device)
    if settings.init is not None:
        torch.manual_seed(settings.seed)
    if start is not None:
        model.load_state_dict(_parts(load_file(start))["model"])
    if settings.only:
        freeze(model, settings.only)
    model.dtype = torch.bfloat16 if settings.half else torch.float32
    if settings.fused:
        if task.compiled:
            fuse(model)
        task.fill = FILL
    added = Added(model)
    rule = optimizer(settings.optimizer, model, settings.lr, settings.fused)
    steps = Steps(task, model, rule, graphs=settings.fused)
    records = _resumed(folder, model, rule, task.device)
    if not records and look is not None:
        _keep_records(folder, records := [{"epoch": 0, **look(model.eval(), 0, folder)}])
    done, saved, spent = records[-1]["epoch"] if records else 0, time.monotonic(), 0.0
    with ProgressLine(total=settings.epochs) as line:
        for epoch in range(done + 1, settings.epochs + 1):
            if _finished(records, settings) or time.time() + 1.1 * spent > deadline:
                break
            start = time.monotonic()
            record: dict[str, Any] = {"epoch": epoch}
            record |= steps.epoch(task.batches(settings.seed, epoch), settings.enough)
            record["train_seconds"] = time.monotonic() - start
            spacing = every if epoch <= late else RARER * every
            if epoch <= EARLY or epoch % spacing == 0 or _finished([record], settings):
                record |= _test(task, model)
                if look is not None:
                    record |= look(model, epoch, folder)
                    spectra = added.spectra(model)
                    record |= {"added": measures(spectra), "spectrum": shape_of(spectra)}
            record["seconds"] = spent = time.monotonic() - start
            records.append(_plain(record))
            _keep_records(folder, records)
            line.show(_words(settings, records[-1]), epoch)
            if time.monotonic() - saved > save_every:
                _save(folder, model, rule, task.device, records)
                saved = time.monotonic()
    _save(folder, model, rule, task.device, records)
    if look is not None:
        last = {"epoch": records[-1]["epoch"], "ended": _finished(records, settings)}
        last |= look.last(model, records[-1]["epoch"], folder)
        last["spectra"] = [[float(f"{x:.4g}") for x in values] for values in added.spectra(model).tolist()]
        _put(folder / "last.json", json.dumps(_plain(last)))
    return records


def freeze(model: Any, only: str) -> None:
    """Train only these weights (`ONLY`), without dropout: what enters the last block never changes."""
    last = model.blocks[-1].attention
    trained = [last.query.weight, last.key.weight]
    trained += [model.head.weight, model.head.bias] if only.endswith("-head") else []
    for weight in model.parameters():
        weight.requires_grad_(any(weight is weight_trained for weight_trained in trained))
    for module in model.modules():
        if hasattr(module, "dropout"):
            module.dropout = 0.0


@torch.no_grad()
def _test(task: Any, model: nn.Module) -> dict[str, float]:
    model.eval()
    total = right = torch.zeros((), device=task.device)
    count = 0
    for batch in task.tests():
        loss, correct = task.loss(model, batch)
        total = total + loss * (1 if task.summed else len(batch[-1]))
        right, count = right + correct, count + len(batch[-1])
    return {"test_loss": float(total) / count, "test_accuracy": float(right) / count}


def _finished(records: list[dict[str, Any]], settings: Settings) -> bool:
    last = records[-1] if records else {}
    lost = not math.isfinite(last.get("train_loss") or 0.0)
    enough = last.get("train_accuracy", 0.0) >= settings.until or last.get("epoch", 0) >= settings.epochs
    return lost or enough or last.get("part_loss", math.inf) <= settings.enough


def _words(settings: Settings, record: dict[str, Any]) -> str:
    shares = ", ".join(
        f"{split} {x:.4f}" for split in ("train", "test") if (x := record.get(f"{split}_accuracy"))
    )
    return f"{settings.task} {settings.optimizer} seed {settings.seed}: epoch {record['epoch']}, {shares}"


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Rounded to six digits: a record is read, a checkpoint is continued."""
    return {name: float(f"{x:.6g}") if isinstance(x, float) else x for name, x in record.items()}


# ---------------------------------------------------------------------- what lies in the folder


def _same(folder: Path, settings: Settings, task: Any) -> None:
    file, mine = folder / "about.json", asdict(settings)
    if file.is_file():
        saved_settings = json.loads(file.read_text(encoding="utf8"))["settings"]
        differing = [name for name in mine if saved_settings.get(name) != mine[name]]
        if differing and (folder / "checkpoint.safetensors").is_file():
            raise ValueError(
                f"{folder} holds another training (its {', '.join(differing)}). Pass another --out."
            )
    _put(file, json.dumps({"settings": mine, **about(task.device)}, indent=1))


def about(device: torch.device) -> dict[str, Any]:
    """The machine, the versions and the commit."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"machine": gpu or platform.machine(), "versions": versions, "commit": commit()}


def _put(file: Path, text: str) -> None:
    with replacing(file) as unfinished:
        unfinished.write_text(text, encoding="utf8")


def _keep_records(folder: Path, records: list[dict[str, Any]]) -> None:
    _put(folder / "records.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def _save(folder: Path, model: nn.Module, rule: Together, device: torch.device, records: list[Any]) -> None:
    """A checkpoint; the records up to it are inside, so that a training that goes on drops later ones."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"optimizer.{name}": value for name, value in rule.tensors().items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with replacing(folder / "checkpoint.safetensors") as unfinished:
        save_file(tensors, unfinished, {"records": json.dumps(records)})


def _resumed(folder: Path, model: nn.Module, rule: Together, device: torch.device) -> list[dict[str, Any]]:
    file = folder / "checkpoint.safetensors"
    if not file.is_file():
        return []
    from safetensors import safe_open

    kinds = _parts(load_file(file))
    model.load_state_dict(kinds["model"])
    rule.load(kinds["optimizer"])
    torch.set_rng_state(kinds["random"]["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(kinds["random"]["cuda"], device)
    with safe_open(file, "pt") as opened:
        return json.loads(opened.metadata()["records"])


def _parts(tensors: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A checkpoint's model, optimizer and random numbers."""
    kinds: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "random": {}}
    for name, value in tensors.items():
        kind, _, name_of_tensor = name.partition(".")
        kinds[kind][name_of_tensor] = value
    return kinds
