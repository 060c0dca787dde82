"""Score the requests of a server as their hidden states arrive in a folder, and keep the scores in a log."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from attsvm._support.validation import is_integer
from attsvm.numbers.archives import BadFile
from attsvm.probe.data import requests

PATIENCE = 5.0
"""Seconds after which a file that cannot be read and does not change counts as damaged."""


@dataclass(frozen=True)
class RequestScore:
    """What probes say about one request.

    request: name of its file without the suffix. tokens: how many were scored. scores: by layer, what
    `decision_function` returns: one number, or one per class. error: why there are no scores, or None.
    """

    request: str
    tokens: int
    scores: dict[int, float | list[float]]
    error: str | None = None


def follow(
    folder: str | os.PathLike[str],
    probes: Mapping[int, Any],
    log: str | os.PathLike[str],
    *,
    layers: Sequence[int] | None = None,
    skip: int = 1,
    every: float = 0.5,
    idle: float | None = None,
) -> Iterator[RequestScore]:
    """Score every request in a folder, those that are there and those that arrive, and yield each once.

        for scored in follow("hidden_states", {18: probe}, "scores.jsonl", layers=(2, 18, 33)):
            if scored.error or scored.scores[18] > threshold: …

    The files are vLLM's, `hidden_states` (T, layers, d). One that is still being written, by its lock or its
    length, waits for the next look; one that stays unreadable for five seconds, or has a NaN, is yielded
    with its error. A line of the log is written before its request is yielded. Started again, after a kill
    too, `follow` goes on with the requests that the log does not have. Delete files when you have their line.

    probes: a fitted `AttentionProbe` for each layer. layers: the ids that the server was told, in its order;
    without them the keys of probes are positions on the file's axis of layers.
    log: a file of JSON lines, which one process at a time may write.
    skip: first tokens to leave out, as in the fit: `activations` leaves out one.
    every: seconds between two looks. idle: seconds without a new request after which it ends; None: never.
    """
    place = Path(folder)
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is no folder. Pass the server's shared_storage_path.")
    positions = _positions(probes, layers)
    if not (is_integer(skip) and skip >= 0):
        raise ValueError(f"skip is {skip!r}. Pass how many first tokens to leave out, 0 or more.")
    return _followed(_Scorer(probes, positions, skip), place, Path(log), every, idle)


def _positions(probes: Mapping[int, Any], layers: Sequence[int] | None) -> dict[int, int]:
    if not probes:
        raise ValueError("probes is empty. Pass fitted probes by layer, such as {18: probe}.")
    known = dict.fromkeys(probes) if layers is None else dict.fromkeys(layers)
    missing = [layer for layer in probes if layer not in known]
    if missing:
        raise ValueError(f"there is a probe of layer {missing[0]}, and the server writes {tuple(known)}.")
    return {layer: layer if layers is None else list(known).index(layer) for layer in probes}


def _followed(
    scorer: _Scorer, folder: Path, log: Path, every: float, idle: float | None
) -> Iterator[RequestScore]:
    with Log(log) as record:
        newest = time.monotonic()
        while True:
            for path in _arrived(folder, record.requests):
                scored = scorer.score(path)
                if scored is not None:
                    record.append(scored)
                    newest = time.monotonic()
                    yield scored
            record.sync()
            if idle is not None and time.monotonic() - newest >= idle:
                return
            time.sleep(every)


def _arrived(folder: Path, known: set[str]) -> list[Path]:
    """Files of requests that are not known yet, the oldest first."""
    found = []
    for entry in os.scandir(folder):
        if entry.name.endswith(".safetensors") and entry.name.removesuffix(".safetensors") not in known:
            try:
                found.append((entry.stat().st_mtime_ns, entry.name))
            except FileNotFoundError:  # somebody deleted it meanwhile
                continue
    return [folder / name for _, name in sorted(found)]


class _Scorer:
    """Scores of files, and since when those that cannot be read have not changed."""

    def __init__(self, probes: Mapping[int, Any], positions: Mapping[int, int], skip: int) -> None:
        self.probes, self.positions, self.skip = probes, positions, skip
        self.unreadable: dict[Path, tuple[tuple[int, int], float]] = {}

    def score(self, path: Path) -> RequestScore | None:
        """The scores of a request; None while its file is being written."""
        if requests.is_locked(path):
            return None
        try:
            states = {layer: self._states(path, layer) for layer in self.probes}
        except FileNotFoundError:
            return None
        except BadFile as error:
            return self._damaged(path, str(error))
        self.unreadable.pop(path, None)
        tokens = len(next(iter(states.values())))
        wrong = [layer for layer, x in states.items() if not np.isfinite(np.asarray(x, np.float32)).all()]
        if wrong:
            return RequestScore(path.stem, tokens, {}, f"layer {wrong[0]} has a NaN or infinite state")
        scores = {layer: _number(self.probes[layer].decision_function([x])) for layer, x in states.items()}
        return RequestScore(path.stem, tokens, scores)

    def _states(self, path: Path, layer: int) -> Any:
        states = np.array(requests.states_of(path, self.positions[layer], self.skip))  # a copy: files go
        width = self.probes[layer].n_features_in_
        if states.shape[1] != width:
            raise ValueError(
                f"{path} has states of width {states.shape[1]}, the probe of layer {layer} was fitted on "
                f"{width}. Pass the probe of this model."
            )
        return states if states.dtype == np.float16 else states.astype(np.float32)

    def _damaged(self, path: Path, error: str) -> RequestScore | None:
        """An error, once a file has not changed for a while: until then it may be half written."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        now, stamp = time.monotonic(), (status.st_size, status.st_mtime_ns)
        seen, since = self.unreadable.get(path, (None, now))
        if seen != stamp:
            self.unreadable[path] = (stamp, now)
            return None
        if now - since < PATIENCE:
            return None
        del self.unreadable[path]
        return RequestScore(path.stem, 0, {}, error)


def _number(scores: Any) -> float | list[float]:
    row = np.asarray(scores, np.float64)[0]
    return float(row) if row.ndim == 0 else [float(x) for x in row]


class Log:
    """A file with a JSON line for each request. A line that was cut off is removed when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            self.requests = self._read()
        except BaseException:
            os.close(self.file)
            raise
        self.written = False
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.sync()
        os.close(self.file)

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:
            return
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"another process writes {self.path}. End it, or pass another log."
            ) from None

    def _read(self) -> set[str]:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            names = {json.loads(line)["request"] for line in whole.splitlines()}
        except (ValueError, TypeError, KeyError):
            raise BadFile(f"{self.path}: a line is no score of a request. Pass a log of `follow`.") from None
        if len(whole) < len(content):
            os.ftruncate(self.file, len(whole))
        return names

    def append(self, scored: RequestScore) -> None:
        """Write a line at once: a kill leaves it whole or absent."""
        line = (json.dumps(asdict(scored)) + "\n").encode()
        done = os.write(self.file, line)
        if done < len(line):
            raise OSError(f"{self.path}: the disk took {done} of {len(line)} bytes. Make room, start again.")
        self.requests.add(scored.request)
        self.written = True

    def sync(self) -> None:
        """Ask the disk to keep what was written."""
        if self.written:
            os.fsync(self.file)
            self.written = False
