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
from sklearn.utils.validation import check_is_fitted

from attsvm._support.validation import is_finite, is_integer
from attsvm.numbers import Values
from attsvm.numbers.archives import BadFile
from attsvm.probe.attention_probe import AttentionProbe
from attsvm.probe.data import requests

SUFFIX = ".safetensors"

LINE = b'{"request": "'
"""The beginning of every line of a log."""

PATIENCE = 5.0
"""Seconds after which a file that cannot be read and does not change counts as damaged."""


@dataclass(frozen=True)
class RequestScore:
    """What probes say about one request.

    request: name of its file without the suffix; files of one name are one request. tokens: how many were
    scored. scores: by layer, what `decision_function` returns: one number, or one per class.
    error: why there are no scores, or None.
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
    length, waits for the next look; one that cannot be scored, or stays unreadable for five seconds, is
    yielded with its error. A line of the log is written before its request is yielded. Started again, after
    a kill too, `follow` goes on with the requests that the log does not have. Delete files when you have
    their line.

    While the log is empty, states of another width or of other layers than those of the probes raise
    ValueError: the call is wrong, rather than a file.

    probes: a fitted `AttentionProbe` for each layer. layers: the ids that the server was told, in its order;
    without them the keys of probes are positions on the file's axis of layers.
    log: a file of JSON lines, which one process at a time may write.
    skip: first tokens to leave out, as in the fit: `activations` leaves out one.
    every: seconds between two looks. idle: seconds without a new request after which it ends; None: never.
        Files that were unreadable then have no line.
    """
    place = Path(folder)
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is no folder. Pass the server's shared_storage_path.")
    ids = None if layers is None else list(layers)
    positions = _positions(probes, ids)
    if not (is_integer(skip) and skip >= 0):
        raise ValueError(f"skip is {skip!r}. Pass how many first tokens to leave out, 0 or more.")
    for name, seconds in (("every", every), ("idle", 0 if idle is None else idle)):
        if not (is_finite(seconds) and seconds >= 0):
            raise ValueError(f"{name} is {seconds!r}. Pass seconds, 0 or more.")
    scorer = _Scorer({int(layer): probes[layer] for layer in probes}, positions, ids, skip)
    return _followed(scorer, place, Path(log), every, idle)


def _positions(probes: Mapping[int, Any], ids: Sequence[int] | None) -> dict[int, int]:
    """The position on the file's axis of layers of every layer that has a probe."""
    if not (isinstance(probes, Mapping) and probes):
        raise ValueError("probes are no mapping with an entry. Pass fitted probes by layer: {18: probe}.")
    for layer, probe in probes.items():
        if not (is_integer(layer) and layer >= 0):
            raise ValueError(f"probes has the layer {layer!r}. Pass a whole number, 0 or more.")
        if not isinstance(probe, AttentionProbe):
            raise TypeError(f"probes[{layer}] is a {type(probe).__name__}. Pass a fitted AttentionProbe.")
        check_is_fitted(probe)
    if ids is None:
        return {int(layer): int(layer) for layer in probes}
    if len(set(ids)) < len(ids):
        raise ValueError(f"layers is {tuple(ids)}, with an id twice. Pass the server's ids, all different.")
    missing = [layer for layer in probes if layer not in ids]
    if missing:
        raise ValueError(f"there is a probe of layer {missing[0]}, and the server writes {tuple(ids)}.")
    return {int(layer): ids.index(layer) for layer in probes}


def _followed(
    scorer: _Scorer, folder: Path, log: Path, every: float, idle: float | None
) -> Iterator[RequestScore]:
    with Log(log) as record:
        newest = time.monotonic()
        while True:
            for path in _arrived(folder, record.requests):
                try:
                    scored = scorer.score(path)
                except _Unfit as error:
                    if not record.requests:
                        raise ValueError(str(error)) from None
                    scored = RequestScore(_request(path.name), 0, {}, str(error))
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
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        remedy = "Call `follow` again when it is back: it goes on with its log"
        raise NotADirectoryError(f"{folder} is gone. {remedy}.") from None
    for entry in entries:
        if entry.name.endswith(SUFFIX) and _request(entry.name) not in known:
            try:
                found.append((entry.stat().st_mtime_ns, entry.name))
            except FileNotFoundError:  # somebody deleted it meanwhile
                continue
    return [folder / name for _, name in sorted(found)]


def _request(name: str) -> str:
    """The request of a file's name."""
    return name.removesuffix(SUFFIX)


class _Unfit(Exception):
    """States of another width, or of other layers, than the probes were fitted on."""


class _Scorer:
    """Scores of files, and since when those that cannot be read have not changed."""

    def __init__(
        self,
        probes: Mapping[int, AttentionProbe],
        positions: Mapping[int, int],
        ids: Sequence[int] | None,
        skip: int,
    ) -> None:
        self.probes, self.positions, self.ids, self.skip = probes, positions, ids, skip
        self.unreadable: dict[Path, tuple[tuple[int, int], float]] = {}

    def score(self, path: Path) -> RequestScore | None:
        """The scores of a request; None while its file is being written."""
        if requests.is_locked(path):
            return None
        try:
            states = requests.hidden_states(path)
            self._check(path, states.shape)
            counted = {layer: self._counted(states, layer) for layer in self.probes}
        except FileNotFoundError:
            return None
        except BadFile as error:
            return self._damaged(path, str(error))
        except OSError as error:
            return self._damaged(path, f"{path} cannot be read ({error.strerror}). Run as the server's user.")
        self.unreadable.pop(path, None)
        request, tokens = _request(path.name), max(0, len(states) - self.skip)
        if not tokens:
            reason = f"no token to score: {len(states)} in the file, the first {self.skip} are left out"
            return RequestScore(request, 0, {}, reason)
        wrong = [layer for layer, x in counted.items() if not np.isfinite(x).all()]
        if wrong:
            return RequestScore(request, tokens, {}, f"layer {wrong[0]} has a NaN or infinite state")
        try:
            scores = {
                layer: _number(self.probes[layer].decision_function([x])) for layer, x in counted.items()
            }
        except ValueError as error:
            return RequestScore(request, tokens, {}, str(error))
        return RequestScore(request, tokens, scores)

    def _check(self, path: Path, shape: tuple[int, ...]) -> None:
        """Raise unless states (T, layers, d) are those that the probes were fitted on."""
        _, layers, width = shape
        if self.ids is not None and len(self.ids) != layers:
            remedy = "Pass layers= as the server was told"
            raise _Unfit(f"{path} has {layers} layers, and layers= names {len(self.ids)}. {remedy}.")
        for layer, probe in self.probes.items():
            if self.positions[layer] >= layers:
                raise _Unfit(f"{path} has {layers} layers, none at position {layer}. Pass layers=.")
            if width != probe.n_features_in_:
                raise _Unfit(
                    f"{path} has states of width {width}, the probe of layer {layer} was fitted on "
                    f"{probe.n_features_in_}. Pass the probe of this model."
                )

    def _counted(self, states: Values, layer: int) -> Values:
        """The states of a layer that count, as a copy, since files go."""
        x = np.array(states[self.skip :, self.positions[layer]])
        return x if x.dtype in (np.float16, np.float64) else x.astype(np.float32)

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
        return RequestScore(_request(path.name), 0, {}, error)


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
        cut_off = content[len(whole) :]
        try:
            if not (cut_off.startswith(LINE) or LINE.startswith(cut_off)):
                raise ValueError
            names = {json.loads(line)["request"] for line in whole.splitlines()}
        except (ValueError, TypeError, KeyError):
            raise BadFile(f"{self.path}: a line is no score of a request. Pass a log of `follow`.") from None
        if cut_off:
            os.ftruncate(self.file, len(whole))
        return names

    def append(self, scored: RequestScore) -> None:
        """Write a line at once: a kill leaves it whole or absent."""
        if not os.fstat(self.file).st_nlink:
            raise FileNotFoundError(f"{self.path} was deleted, and the scores with it. Start again.")
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
