"""Sentences and the tokens that follow them, read as choices of one token among those of a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np

from attsvm.next_token.ids import Ids, as_ids, as_queries, as_sentences
from attsvm.next_token.sequences import Sentence, as_line, collocations, from_line, numbered, vocabulary_of
from attsvm.numbers import Bool
from attsvm.numbers.atomic_write import write_text
from attsvm.numbers.files import read_text


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """n sentences over a vocabulary of V tokens, each with the one token that follows it.

    Every token x announces a token n(x), its collocation. A sentence X with next token p(X) therefore
    chooses among its tokens: the winner is the x in X with n(x) = p(X).

    ids (n, T): token numbers 0…V−1, −1 beyond the end of a sentence.
    following (n,): the next token of each sentence.
    vocabulary (V,): the names of the tokens.
    collocation (V,): n(x), injective; −1 for a token that announces nothing. By default every token
        announces itself: the next token is copied from the sentence.
    queries (n,): the token that asks, by default the last of the sentence.

    References: Huang, Liang, Yang 2024, "Non-asymptotic Convergence of Training Transformers for
    Next-token Prediction" (collocations); Li et al. 2024, "Mechanics of Next Token Prediction with
    Self-Attention" (copies).
    """

    ids: Ids
    following: Ids
    vocabulary: tuple[str, ...]
    collocation: Ids = field(default=cast(Ids, None))
    queries: Ids = field(default=cast(Ids, None))

    def __post_init__(self) -> None:
        names = tuple(map(str, self.vocabulary))
        if not names or len(set(names)) != len(names):
            raise ValueError("vocabulary is empty or names a token twice. Pass distinct names.")
        object.__setattr__(self, "vocabulary", names)
        V = len(names)
        ids = as_sentences(self.ids, V)
        following = as_ids("following", self.following, 1, 0, V)
        if len(following) != len(ids):
            raise ValueError(f"following has {len(following)} entries but there are {len(ids)} sentences.")
        told = np.arange(V) if self.collocation is None else self.collocation
        collocation = as_ids("collocation", told, 1, -1, V)
        if len(collocation) != V:
            raise ValueError(f"collocation has {len(collocation)} entries but the vocabulary has {V} tokens.")
        queries = as_queries(self.queries, ids, V)
        parts = {"ids": ids, "following": following, "collocation": collocation, "queries": queries}
        for name, array in parts.items():
            object.__setattr__(self, name, array)
        _check_injective(self)
        _check_winners(self)

    # ------------------------------------------------------------------ other ways to build

    @classmethod
    def of(
        cls,
        sequences: Sequence[Sequence[Any]],
        vocabulary: Sequence[Any] | None = None,
        collocation: Mapping[Any, Any] | None = None,
        queries: Sequence[Any] | None = None,
    ) -> Corpus:
        """A corpus from sequences of token names: the last entry of each is the next token.

        vocabulary: by default the names in the order they appear.
        collocation: what each token announces. By default it is learnt from the sequences of two
            tokens (x, n(x)); where these only copy, or there are none, every token announces itself.
        queries: the token that asks, one per sequence; None for the last of the sentence.
        """
        named = [tuple(map(str, sequence)) for sequence in sequences]
        if not named:
            raise ValueError("there is no sentence. Pass at least one sequence of two tokens or more.")
        short = next((i for i, s in enumerate(named) if len(s) < 2), None)
        if short is not None:
            what = f"only {named[short][0]!r}" if named[short] else "nothing"
            raise ValueError(
                f"sentence {short} is empty: the sequence holds {what}. "
                "A sequence is one token or more and then the next token."
            )
        pairs = collocations(named) if collocation is None else collocation
        told = {str(x): str(y) for x, y in pairs.items()}
        asked = [None] * len(named) if queries is None else [None if q is None else str(q) for q in queries]
        if len(asked) != len(named):
            raise ValueError(f"queries has {len(asked)} entries but there are {len(named)} sentences.")
        asking = [sequence[-2] if q is None else q for sequence, q in zip(named, asked, strict=True)]
        names = vocabulary_of(named, [*told, *told.values(), *asking], vocabulary)
        number = {name: i for i, name in enumerate(names)}
        ids, following = numbered(named, number)
        announced = None
        if collocation is not None or any(x != y for x, y in told.items()):
            announced = np.full(len(names), -1)
            announced[[number[x] for x in told]] = [number[y] for y in told.values()]
        query_ids = np.array([number[q] for q in asking])
        return cls(ids, following, names, announced, query_ids)  # type: ignore[arg-type]

    @classmethod
    def read(cls, file: str | PathLike[str], vocabulary: Sequence[Any] | None = None) -> Corpus:
        """A corpus from a text file: one sequence per line, tokens apart by blanks, the last is the next.

        Blank lines are skipped. Lines of two tokens teach the collocation, as in `Corpus.of`. A line may also
        be JSON, {"tokens": […], "next": …, "query": …}, for names with blanks and queries of your own.
        """
        lines = read_text(file, "a text file with one sequence of tokens per line").splitlines()
        sentences = [from_line(line) for line in lines if line.strip()]
        if not sentences:
            raise ValueError(f"{file} holds no sentence. Write one sequence of tokens per line.")
        return cls.of([s.sequence for s in sentences], vocabulary, queries=[s.query for s in sentences])

    def write(self, file: str | PathLike[str]) -> None:
        """Write one sequence per line; `read` gives them back, with the queries.

        A line that plain words cannot say is JSON: names with blanks, a query that is not the last token.
        Collocations that no one-token sentence states are added as lines of two tokens, which are
        then one-token sentences when read: they compare nothing and change no program.
        """
        names = self.vocabulary
        stated = self.ids[self.lengths == 1, 0]
        known = np.flatnonzero(self.collocation >= 0)
        untold = np.setdiff1d(known, stated)
        if (self.collocation[known] == known).all():  # read takes copies for granted
            if not self.copies:
                raise ValueError(
                    "some tokens announce themselves and the others nothing, which a text cannot say: it "
                    "would be read as if all did. Write Corpus(ids, following, vocabulary), where they do."
                )
            untold = known[:0]
        lines = [as_line(Sentence((names[x], names[self.collocation[x]]))) for x in untold]
        for row, y, q in zip(self.ids, self.following, self.queries, strict=True):
            tokens = row[row >= 0]
            query = None if q == tokens[-1] else names[q]
            lines.append(as_line(Sentence(tuple(names[x] for x in (*tokens, y)), query)))
        write_text(Path(file), "\n".join(lines) + "\n")

    # ------------------------------------------------------------------ what it says

    @property
    def n(self) -> int:
        """Number of sentences."""
        return len(self.ids)

    @property
    def V(self) -> int:
        """Number of tokens in the vocabulary."""
        return len(self.vocabulary)

    @property
    def copies(self) -> bool:
        """Whether every token announces itself."""
        return bool((self.collocation == np.arange(self.V)).all())

    @property
    def mask(self) -> Bool:
        """True where there is a token (n, T)."""
        return self.ids >= 0

    @property
    def lengths(self) -> Ids:
        """Tokens of each sentence (n,)."""
        return self.mask.sum(-1)

    @cached_property
    def announcer(self) -> Ids:
        """The token that announces each token (V,), the inverse of the collocation; −1 for none."""
        inverse = np.full(self.V, -1)
        known = np.flatnonzero(self.collocation >= 0)
        inverse[self.collocation[known]] = known
        return inverse

    @property
    def winners(self) -> Ids:
        """The token that each sentence chooses (n,): the one that announces the next token."""
        return self.announcer[self.following]

    @cached_property
    def repeats(self) -> Bool:
        """Later copies of a token within its sentence (n, T)."""
        order = np.argsort(self.ids, axis=-1, kind="stable")
        ranked = np.take_along_axis(self.ids, order, -1)
        again = np.zeros(self.ids.shape, bool)
        again[:, 1:] = (ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)
        out = np.zeros_like(again)
        np.put_along_axis(out, order, again, -1)
        return out

    def take(self, which: Ids | Bool) -> Corpus:
        """The corpus of some sentences."""
        parts = (self.ids[which], self.following[which], self.vocabulary, self.collocation)
        return Corpus(*parts, self.queries[which])

    def show(self, sentence: int) -> str:
        """One sentence in words."""
        names, row = self.vocabulary, self.ids[sentence]
        said = " ".join(names[x] for x in row[row >= 0])
        return f'sentence {sentence} "{said}" → {names[self.following[sentence]]!r}'

    def __repr__(self) -> str:
        low, high = self.lengths.min(), self.lengths.max()
        span = f"{low}" if low == high else f"{low}–{high}"
        kind = (
            "tokens announce themselves" if self.copies else f"{(self.collocation >= 0).sum()} collocations"
        )
        return f"Corpus({self.n} sentences of {span} tokens, V={self.V}; {kind})"


# ---------------------------------------------------------------------- details


def _check_injective(corpus: Corpus) -> None:
    known = np.flatnonzero(corpus.collocation >= 0)
    counts = np.bincount(corpus.collocation[known], minlength=corpus.V)
    if (counts > 1).any():
        shared = int(np.argmax(counts > 1))
        names = corpus.vocabulary
        both = " and ".join(repr(names[x]) for x in known[corpus.collocation[known] == shared][:2])
        raise ValueError(
            f"the collocation is not injective: {both} both announce {names[shared]!r}, so the token that "
            "a sentence chooses is not determined."
        )


def _check_winners(corpus: Corpus) -> None:
    absent = ~(corpus.ids == corpus.winners[:, None]).any(-1) | (corpus.winners < 0)
    if absent.any():
        i = int(np.argmax(absent))
        names = corpus.vocabulary
        y, x = names[corpus.following[i]], int(corpus.winners[i])
        who = f"only {names[x]!r} announces {y!r}, and it" if x >= 0 else f"the token that announces {y!r}"
        raise ValueError(
            f"{corpus.show(i)}: {who} is not in the sentence. "
            f"{int(absent.sum())} of {corpus.n} sentences contain no token that announces their next one."
        )
