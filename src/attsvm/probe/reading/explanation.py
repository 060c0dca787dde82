"""Reading a probe: what every token contributes to the score of its sequence, in numbers and on a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from attsvm._support.pages import escaped, page
from attsvm._support.token_text import readable
from attsvm.numbers import Float, Values
from attsvm.numbers.atomic_write import write_text
from attsvm.probe.data.standard import name_the_bad
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import Weights, probabilities

SHOWN, WORDS = 300, 14
"""Sequences on a page, and words of each side that speak loudest."""


class Pieces(Protocol):
    """Texts that know their pieces, as `heads.activations` returns them."""

    def __len__(self) -> int: ...
    def pieces(self, number: int, /) -> Sequence[str]: ...


Texts: TypeAlias = Pieces | Sequence[str | Sequence[str]] | None
"""What the tokens of every sequence read; see `read_pieces`."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """n sequences and what their tokens say.

        contribution of token t = Σ_h a_th (v_h · x_t + b/h),   sum over t = score

    pieces: what the tokens read; attention: (T_i,) each, mean over heads; contributions: (T_i, k) each;
    scores (n, k), k = 1 for two classes; probabilities (n, classes); labels (n,) where they are known.
    stays (n,): share of resamples in which the most attended token is the same, where it is known.
    """

    pieces: tuple[tuple[str, ...], ...]
    attention: tuple[Float, ...]
    contributions: tuple[Float, ...]
    scores: Float
    classes: Values
    labels: Values | None = None
    stays: Float | None = None

    @property
    def probabilities(self) -> Float:
        return probabilities(self.scores)

    @property
    def predicted(self) -> Values:
        two = self.scores.shape[1] == 1
        return np.asarray(self.classes[(self.scores[:, 0] > 0).astype(int) if two else self.scores.argmax(1)])

    def votes(self, i: int) -> Float:
        """Contributions (T,) to the score of two classes, or to that of the predicted class."""
        return self.contributions[i][:, 0 if self.scores.shape[1] == 1 else int(self.scores[i].argmax())]

    def mistakes(self, most: int = 10) -> NDArray[np.intp]:
        """Sequences whose prediction is wrong, the surest first."""
        if self.labels is None:
            raise ValueError("mistakes need labels. Pass them: probe.explain(X, texts, y).")
        wrong = np.flatnonzero(self.predicted != self.labels)
        return wrong[np.argsort(-self.probabilities[wrong].max(1), kind="stable")][:most]

    def words(self, most: int = WORDS) -> dict[str, list[tuple[str, float, int]]]:
        """Words that speak for each class: (word, mean vote, how often), by mean vote times √how often.

        Of two classes the first has the negative votes; of several each has those where it is predicted.
        """
        votes: dict[str, dict[str, list[float]]] = {str(name): {} for name in self.classes}
        two = self.scores.shape[1] == 1
        for i, pieces in enumerate(self.pieces):
            for piece, vote in zip(pieces, self.votes(i).tolist(), strict=True):
                side = self.classes[int(vote > 0)] if two else self.predicted[i]
                votes[str(side)].setdefault(piece.strip().lower(), []).append(abs(vote) if two else vote)
        loudest = {}
        for side, said in votes.items():
            order = sorted(said, key=lambda word: -sum(said[word]) / len(said[word]) ** 0.5)[:most]
            loudest[side] = [(word, float(np.mean(said[word])), len(said[word])) for word in order]
        return loudest

    def html(self) -> str:
        """A page: mistakes, sure and unsure sequences, their tokens in the colour of their vote."""
        return page("attsvm.probe.reading", "explanation.html", data=self._data())

    def save(self, file: str | os.PathLike[str]) -> Path:
        """Write the page, and return the file's name."""
        path = Path(file)
        write_text(path, self.html())
        return path

    def _data(self) -> dict[str, Any]:
        n, told = len(self.pieces), self.probabilities.max(1)
        first = self.mistakes(SHOWN // 2).tolist() if self.labels is not None else []
        rest = [i for i in np.argsort(-told, kind="stable").tolist() if i not in set(first)]
        half = max(SHOWN - len(first), 0)
        chosen = first + (
            rest if len(rest) <= half else rest[: half // 2] + rest[len(rest) - (half - half // 2) :]
        )
        right = None if self.labels is None else float((self.predicted == self.labels).mean())
        shown = [
            {
                "i": i,
                "pieces": self.pieces[i],
                "votes": [round(v, 4) for v in self.votes(i).tolist()],
                "attention": [round(a, 4) for a in self.attention[i].tolist()],
                "score": round(float(self.scores[i].max()), 3),
                "p": round(float(told[i]), 4),
                "predicted": str(self.predicted[i]),
                "label": None if self.labels is None else str(self.labels[i]),
                "stays": None if self.stays is None else round(float(self.stays[i]), 3),
            }
            for i in chosen
        ]
        classes = [str(name) for name in self.classes]
        return {"n": n, "right": right, "classes": classes, "words": self.words(), "sequences": shown}

    def _repr_html_(self) -> str:
        """The surest sequences, mistakes first, for a notebook."""
        shown = self._data()["sequences"][:8]
        rows = []
        for one in shown:
            size = max(map(abs, one["votes"])) or 1.0
            marks = [
                f'<span style="background:rgba({_TINTS[vote > 0]},{0.75 * abs(vote) / size:.2f})">'
                f"{escaped(piece)}</span>"
                for piece, vote in zip(one["pieces"], one["votes"], strict=True)
            ]
            truth = "" if one["label"] in (None, one["predicted"]) else f" (is {escaped(one['label'])})"
            rows.append(f"<p><b>{escaped(one['predicted'])} {one['p']:.2f}</b>{truth}: {' '.join(marks)}</p>")
        return f"<div><p>{escaped(repr(self))}</p>{''.join(rows)}</div>"

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        wrong = "" if self.labels is None else f", {len(self.mistakes(len(self)))} mistakes"
        return f"Explanation({len(self)} sequences, {sum(map(len, self.pieces))} tokens{wrong})"


_TINTS = {True: "0,114,178", False: "213,94,0"}


def explain(
    store: TokenStore, mapped: Callable[[Float], Float], weights: Weights, centre: Float
) -> tuple[list[Float], list[Float]]:
    """Attention (T_i,) and contributions (T_i, k) of the tokens of every sequence, in float64.

    mapped: from tokens (T, d) to the space of the weights; centre as in `attend`.
    """
    base = weights.about(centre).intercept / weights.head.shape[1]
    attentions, contributions = [], []
    for i, tokens in enumerate(store):
        if not np.isfinite(np.asarray(tokens, np.float64)).all():
            name_the_bad(store, slice(i, i + 1))
        logits, scores = weights.on(mapped(np.asarray(tokens, np.float64)) - centre)
        attention = softmax(logits, axis=0)
        attentions.append(attention.mean(1))
        contributions.append(np.einsum("th,thk->tk", attention, scores + base))
    return attentions, contributions


def read_pieces(texts: Texts, lengths: NDArray[np.intp]) -> tuple[tuple[str, ...], ...]:
    """What the tokens of every sequence read.

    texts: pieces per sequence; strings with one word per token; what `heads.activations` returned; or None,
    which numbers the tokens.
    """
    if texts is None:
        return tuple(tuple(map(str, range(length))) for length in lengths)
    if hasattr(texts, "pieces"):
        texts = [texts.pieces(i) for i in range(len(texts))]
    texts = list(texts)
    if len(texts) != len(lengths):
        raise ValueError(
            f"there are {len(texts)} texts and {len(lengths)} sequences. Pass one text for each."
        )
    odd = [text for text in texts if not isinstance(text, str) and not np.iterable(text)]
    if odd:
        raise ValueError(
            f"a text is {odd[0]!r}. Pass a string or a list of pieces for each sequence; labels are y=…."
        )
    written = (text.split() if isinstance(text, str) else list(map(str, text)) for text in texts)
    pieces = tuple(map(tuple, readable(written)))
    for i, (said, length) in enumerate(zip(pieces, lengths.tolist(), strict=True)):
        if len(said) != length:
            raise ValueError(
                f"text {i} has {len(said)} pieces, its sequence {length} tokens. Pass a tokenizer's pieces: "
                "activations(…).pieces(i), or tokenizer.convert_ids_to_tokens(ids)."
            )
    return pieces


def read_labels(labels: ArrayLike | None, classes: Values, n: int) -> Values | None:
    """Labels (n,) as the probe's own classes, or None.

    They are compared by value, and only once: True and 1.0 are the class 1, but do not read like it.
    """
    if labels is None:
        return None
    found, wanted = np.asarray(labels), f"Pass one of {classes.tolist()} for each of {n} sequences."
    if found.shape != (n,):
        raise ValueError(f"y has shape {found.shape}. {wanted}")
    same = np.asarray(found[:, None] == classes)  # of text and numbers: all False
    unknown = found[~same.any(1)]
    if len(unknown):
        raise ValueError(f"y has the unknown classes {list(dict.fromkeys(unknown.tolist()))}. {wanted}")
    return np.asarray(classes[same.argmax(1)])
