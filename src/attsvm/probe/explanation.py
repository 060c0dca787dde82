"""What every token contributes to the score of its sequence, in numbers and on a page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from attsvm._support.pages import page
from attsvm._support.token_text import readable
from attsvm.numbers import Float, Values
from attsvm.numbers.atomic_write import write_text
from attsvm.probe.data.store import TokenStore, raise_not_finite
from attsvm.probe.fitting.attention import Weights, probabilities

SHOWN, WORDS, LEAST = 300, 14, 2
"""Sequences on a page, words of each class with the largest votes, and how often a word occurs at least."""

SPECIAL = re.compile(r"\[(?:[A-Z]+|unused)\d*\]|<[^<>\s]+>|<｜[^<>]+｜>")
"""Special tokens of tokenizers: [CLS], <s>, <|endoftext|>, <｜begin▁of▁sentence｜>."""


class Pieces(Protocol):
    """Texts with their pieces, as `heads.activations` returns them."""

    def __len__(self) -> int: ...
    def pieces(self, number: int, /) -> Sequence[str]: ...


Texts: TypeAlias = Pieces | Sequence[str | Sequence[str]] | None
"""The text of every token of every sequence; see `read_pieces`."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The contributions of the tokens of n sequences.

        contribution of token t = Σ_h a_th (v_h · x_t + b/h),   sum over t = score

    pieces: text of the tokens; attention: (T_i,) each, mean over heads; contributions: (T_i, k) each;
    scores (n, k), k = 1 for two classes; probabilities (n, classes); labels (n,) where they are known.
    stays (n,): share of resamples in which the most attended token is the same, if it was computed.
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

    def words(self, most: int = WORDS, least: int = LEAST) -> dict[str, list[tuple[str, float, int]]]:
        """Words with the largest mean vote for each class: (word, mean vote, count), without special tokens.

        least: how often a word votes for the class at least; where no word does, each is listed.
        Of two classes the first has the negative votes; of several each has those where it is predicted.
        """
        votes: dict[str, dict[str, list[float]]] = {str(name): {} for name in self.classes}
        two, predicted = self.scores.shape[1] == 1, self.predicted
        for i, pieces in enumerate(self.pieces):
            for piece, vote in zip(pieces, self.votes(i).tolist(), strict=True):
                if SPECIAL.fullmatch(piece.strip()):
                    continue
                side = self.classes[int(vote > 0)] if two else predicted[i]
                votes[str(side)].setdefault(piece.strip().lower(), []).append(abs(vote) if two else vote)
        largest = {}
        for side, of_words in votes.items():
            rows = [(word, float(np.mean(v)), len(v)) for word, v in of_words.items()]
            frequent = [row for row in rows if row[2] >= least] or rows
            largest[side] = sorted(frequent, key=lambda row: -row[1])[:most]
        return largest

    def html(self) -> str:
        """A page: mistakes, sure and unsure sequences, their tokens in the colour of their vote."""
        return page("attsvm.probe", "explanation.html", data=self._data())

    def save(self, file: str | os.PathLike[str]) -> Path:
        """Write the page, and return the file's name."""
        path = Path(file)
        write_text(path, self.html())
        return path

    def _data(self) -> dict[str, Any]:
        n, certainty = len(self.pieces), self.probabilities.max(1)
        mistakes = self.mistakes(SHOWN // 2).tolist() if self.labels is not None else []
        numbers = [i for i in np.argsort(-certainty, kind="stable").tolist() if i not in set(mistakes)]
        places = max(SHOWN - len(mistakes), 0)
        if len(numbers) > places:  # half of the places for the surest sequences, half for the least sure
            numbers = numbers[: places // 2] + numbers[len(numbers) - (places - places // 2) :]
        accuracy = None if self.labels is None else float((self.predicted == self.labels).mean())
        shown = [
            {
                "i": i,
                "pieces": self.pieces[i],
                "votes": [round(v, 4) for v in self.votes(i).tolist()],
                "attention": [round(a, 4) for a in self.attention[i].tolist()],
                "score": round(float(self.scores[i].max()), 3),
                "p": round(float(certainty[i]), 4),
                "predicted": str(self.predicted[i]),
                "label": None if self.labels is None else str(self.labels[i]),
                "stays": None if self.stays is None else round(float(self.stays[i]), 3),
            }
            for i in mistakes + numbers
        ]
        classes = [str(name) for name in self.classes]
        return {"n": n, "right": accuracy, "classes": classes, "words": self.words(), "sequences": shown}

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        wrong = "" if self.labels is None else f", {len(self.mistakes(len(self)))} mistakes"
        return f"Explanation({len(self)} sequences, {sum(map(len, self.pieces))} tokens{wrong})"


def explain(
    store: TokenStore, mapped: Callable[[Float], Float], weights: Weights, centre: Float
) -> tuple[tuple[Float, ...], tuple[Float, ...]]:
    """Attention (T_i,) and contributions (T_i, k) of the tokens of every sequence, in float64.

    mapped: from tokens (T, d) to the space of the weights; centre as in `read_out`.
    """
    intercept = weights.about(centre).intercept / weights.head.shape[1]
    attentions, contributions = [], []
    for i, tokens in enumerate(store):
        if not np.isfinite(np.asarray(tokens, np.float64)).all():
            raise_not_finite(store, slice(i, i + 1))
        logits, scores = weights.on(mapped(np.asarray(tokens, np.float64)) - centre)
        attention = softmax(logits, axis=0)
        attentions.append(attention.mean(1))
        contributions.append(np.einsum("th,thk->tk", attention, scores + intercept))
    return tuple(attentions), tuple(contributions)


def read_pieces(texts: Texts, lengths: NDArray[np.intp]) -> tuple[tuple[str, ...], ...]:
    """The text of every token of every sequence.

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
    invalid = [text for text in texts if not isinstance(text, str) and not np.iterable(text)]
    if invalid:
        raise ValueError(
            f"a text is {invalid[0]!r}. Pass a string or a list of pieces for each sequence; labels are y=…."
        )
    split = (text.split() if isinstance(text, str) else list(map(str, text)) for text in texts)
    pieces = tuple(map(tuple, readable(split)))
    for i, (of_text, length) in enumerate(zip(pieces, lengths.tolist(), strict=True)):
        if len(of_text) != length:
            raise ValueError(
                f"text {i} has {len(of_text)} pieces, its sequence {length} tokens. Pass a tokenizer's "
                "pieces: activations(…).pieces(i), or tokenizer.convert_ids_to_tokens(ids)."
            )
    return pieces


def read_labels(labels: ArrayLike | None, classes: Values, n: int) -> Values | None:
    """Labels (n,) as the probe's classes, or None.

    A label is replaced by the class of equal value: True and 1.0 equal the class 1, but print otherwise.
    """
    if labels is None:
        return None
    array, remedy = np.asarray(labels), f"Pass one of {classes.tolist()} for each of {n} sequences."
    if array.shape != (n,):
        raise ValueError(f"y has shape {array.shape}. {remedy}")
    same = np.asarray(array[:, None] == classes)  # between text and numbers all False
    unknown = array[~same.any(1)]
    if len(unknown):
        raise ValueError(f"y has the unknown classes {list(dict.fromkeys(unknown.tolist()))}. {remedy}")
    return np.asarray(classes[same.argmax(1)])
