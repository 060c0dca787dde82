"""Corpora: sentences and the tokens that follow them, as arrays and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool
from attsvm.numbers.atomic_write import write_text
from attsvm.numbers.files import read_text

Ids = NDArray[np.intp]


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
    queries (n,): the query token of each sentence, by default its last token.

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
        collocation = np.arange(V) if self.collocation is None else self.collocation
        collocation = as_ids("collocation", collocation, 1, -1, V)
        if len(collocation) != V:
            raise ValueError(f"collocation has {len(collocation)} entries but the vocabulary has {V} tokens.")
        queries = as_queries(self.queries, ids, V)
        arrays = {"ids": ids, "following": following, "collocation": collocation, "queries": queries}
        for name, array in arrays.items():
            object.__setattr__(self, name, array)
        _check_injective(self)
        _check_winners(self)

    # ------------------------------------------------------------------ constructors

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
        queries: the query token of each sequence; None for the last token of the sentence.
        """
        texts = [tuple(map(str, sequence)) for sequence in sequences]
        if not texts:
            raise ValueError("there is no sentence. Pass at least one sequence of two tokens or more.")
        short = next((i for i, text in enumerate(texts) if len(text) < 2), None)
        if short is not None:
            contents = f"only {texts[short][0]!r}" if texts[short] else "nothing"
            raise ValueError(
                f"sentence {short} is empty: the sequence holds {contents}. "
                "A sequence is one token or more and then the next token."
            )
        pairs = collocations(texts) if collocation is None else collocation
        pairs = {str(x): str(y) for x, y in pairs.items()}
        query_list = [None] * len(texts) if queries is None else list(queries)
        if len(query_list) != len(texts):
            raise ValueError(f"queries has {len(query_list)} entries but there are {len(texts)} sentences.")
        query_names = [text[-2] if q is None else str(q) for text, q in zip(texts, query_list, strict=True)]
        names = _vocabulary(texts, [*pairs, *pairs.values(), *query_names], vocabulary)
        number = {name: i for i, name in enumerate(names)}
        announced = None
        if collocation is not None or any(x != y for x, y in pairs.items()):
            announced = np.full(len(names), -1)
            announced[[number[x] for x in pairs]] = [number[y] for y in pairs.values()]
        lengths = np.array([len(text) - 1 for text in texts])
        ids = np.full((len(texts), lengths.max()), -1)
        ids[np.arange(ids.shape[1]) < lengths[:, None]] = [number[x] for text in texts for x in text[:-1]]
        following = np.array([number[text[-1]] for text in texts])
        query_ids = np.array([number[q] for q in query_names])
        return cls(ids, following, names, announced, query_ids)  # type: ignore[arg-type]

    @classmethod
    def read(cls, file: str | PathLike[str], vocabulary: Sequence[Any] | None = None) -> Corpus:
        """A corpus from a text file: a sequence of tokens per line, separated by blanks, the next token last.

        Blank lines are skipped. Lines of two tokens teach the collocation, as in `Corpus.of`. A line may also
        be JSON, {"tokens": […], "next": …, "query": …}, for names with blanks and for queries.
        """
        lines = read_text(file, "a text file with one sequence of tokens per line").splitlines()
        sentences = [_from_line(line) for line in lines if line.strip()]
        if not sentences:
            raise ValueError(f"{file} holds no sentence. Write one sequence of tokens per line.")
        return cls.of([s.sequence for s in sentences], vocabulary, queries=[s.query for s in sentences])

    def write(self, file: str | PathLike[str]) -> None:
        """Write one sequence per line, which `read` reads with the queries.

        Names with blanks, and a query that is not the last token, are written as JSON. Collocations that no
        one-token sentence shows are added as lines of two tokens. They are read as one-token sentences, which
        compare no tokens and change no program.
        """
        names = self.vocabulary
        announcing = np.flatnonzero(self.collocation >= 0)
        missing = np.setdiff1d(announcing, self.ids[self.lengths == 1, 0])
        if (self.collocation[announcing] == announcing).all():  # the default of `read`
            if not self.copies:
                raise ValueError(
                    "some tokens announce themselves and the others nothing, which a text cannot say: it "
                    "would be read as if all did. Write Corpus(ids, following, vocabulary), where they do."
                )
            missing = announcing[:0]
        lines = [_as_line(Sentence((names[x], names[self.collocation[x]]))) for x in missing]
        for row, y, q in zip(self.ids, self.following, self.queries, strict=True):
            tokens = row[row >= 0]
            query = None if q == tokens[-1] else names[q]
            lines.append(_as_line(Sentence(tuple(names[x] for x in (*tokens, y)), query)))
        write_text(Path(file), "\n".join(lines) + "\n")

    # ------------------------------------------------------------------ sizes and winners

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
        announcing = np.flatnonzero(self.collocation >= 0)
        inverse[self.collocation[announcing]] = announcing
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
        repeats = np.zeros(self.ids.shape, bool)
        repeats[:, 1:] = (ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)
        out = np.zeros_like(repeats)
        np.put_along_axis(out, order, repeats, -1)
        return out

    @cached_property
    def counts(self) -> Ids:
        """How often each token occurs in each sentence (n, V)."""
        counts = np.zeros((self.n, self.V), np.intp)
        np.add.at(counts, (np.nonzero(self.mask)[0], self.ids[self.mask]), 1)
        return counts

    def take(self, which: Ids | Bool) -> Corpus:
        """The corpus of some sentences."""
        ids, following, queries = (x[which] for x in (self.ids, self.following, self.queries))
        return Corpus(ids, following, self.vocabulary, self.collocation, queries)

    def show(self, sentence: int) -> str:
        """One sentence as text."""
        names, row = self.vocabulary, self.ids[sentence]
        text = " ".join(names[x] for x in row[row >= 0])
        return f'sentence {sentence} "{text}" → {names[self.following[sentence]]!r}'

    def __repr__(self) -> str:
        low, high = self.lengths.min(), self.lengths.max()
        span = f"{low}" if low == high else f"{low}–{high}"
        kind = f"{(self.collocation >= 0).sum()} collocations"
        kind = "tokens announce themselves" if self.copies else kind
        return f"Corpus({self.n} sentences of {span} tokens, V={self.V}; {kind})"


# ---------------------------------------------------------------------- checks


def _check_injective(corpus: Corpus) -> None:
    announcing = np.flatnonzero(corpus.collocation >= 0)
    counts = np.bincount(corpus.collocation[announcing], minlength=corpus.V)
    if (counts > 1).any():
        shared = int(np.argmax(counts > 1))
        names = corpus.vocabulary
        both = " and ".join(repr(names[x]) for x in announcing[corpus.collocation[announcing] == shared][:2])
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
        announcer = (
            f"only {names[x]!r} announces {y!r}, and it" if x >= 0 else f"the token that announces {y!r}"
        )
        raise ValueError(
            f"{corpus.show(i)}: {announcer} is not in the sentence. "
            f"{int(absent.sum())} of {corpus.n} sentences contain no token that announces their next one."
        )


def as_ids(name: str, value: Any, axes: int, smallest: int, V: int) -> Ids:
    """A read-only copy of integers from `smallest` to V − 1 with this number of axes."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} is ragged. Pad it with −1, or use Corpus.of(sequences).") from None
    if array.ndim != axes or array.dtype.kind not in "iu":
        raise ValueError(f"{name} has shape {array.shape}, dtype {array.dtype}. Pass {axes}-d integers.")
    unknown = (array < smallest) | (array >= V)
    if unknown.any():
        where = tuple(map(int, np.argwhere(unknown)[0]))
        tokens = f"The vocabulary has the tokens 0…{V - 1}."
        raise ValueError(f"{name} has the unknown token {array[where]} at {where}. {tokens}")
    ids = array.astype(np.intp)
    ids.flags.writeable = False
    return ids


def as_sentences(ids: Any, V: int) -> Ids:
    """Check sentences (n, T) of at least one token, with −1 beyond their end only."""
    rows = as_ids("ids", ids, 2, -1, V)
    if rows.size == 0:
        raise ValueError("there is no sentence. Pass ids (n, T) with at least one token each.")
    padding = rows < 0
    holes = (padding[:, :-1] & ~padding[:, 1:]).any(-1)
    if holes.any() or padding[:, 0].any():
        i = int(np.argmax(padding[:, 0] | holes))
        fault = "is empty" if padding[i].all() else "has padding before its last token"
        raise ValueError(f"sentence {i} {fault}: {rows[i].tolist()}. Put tokens first, then −1.")
    return rows


def as_queries(queries: Any, sentences: Ids, V: int) -> Ids:
    """Check the query tokens (n,); None for the last token of every sentence."""
    n = len(sentences)
    if queries is None:
        queries = sentences[np.arange(n), (sentences >= 0).sum(-1) - 1]
    query_ids = as_ids("queries", queries, 1, 0, V)
    if len(query_ids) != n:
        raise ValueError(f"queries has {len(query_ids)} entries but there are {n} sentences.")
    return query_ids


# ---------------------------------------------------------------------- names of tokens


def collocations(sequences: Sequence[Sequence[Any]]) -> dict[str, str]:
    """The map x → n(x) that sequences of two tokens teach; longer sequences are ignored.

    Raises ValueError, showing both sequences, when two sequences contradict each other.
    """
    announced: dict[str, tuple[str, int]] = {}
    for i, sequence in enumerate(sequences):
        if len(sequence) == 2:
            x, y = map(str, sequence)
            first_y, first = announced.setdefault(x, (y, i))
            if first_y != y:
                raise ValueError(
                    f"no collocation: {x!r} is followed by {first_y!r} in sentence {first} and by {y!r} "
                    f"in sentence {i}. A token alone must announce one next token."
                )
    return {x: y for x, (y, _) in announced.items()}


def _vocabulary(
    texts: Sequence[Sequence[str]], mentioned: Sequence[str], vocabulary: Sequence[Any] | None
) -> tuple[str, ...]:
    """The names of the vocabulary, by default in the order they appear. Raises for an unknown name.

    mentioned: the names in collocations and queries.
    """
    if vocabulary is None:
        return tuple(dict.fromkeys([*(x for text in texts for x in text), *mentioned]))
    names = tuple(map(str, vocabulary))
    allowed = set(names)
    for i, text in enumerate([*texts, mentioned]):
        unknown = next((x for x in text if x not in allowed), None)
        if unknown is not None:
            place = f'sentence {i} "{" ".join(text)}"' if i < len(texts) else "a collocation or query"
            raise ValueError(f"{place} has the unknown token {unknown!r}. Add it to the vocabulary.")
    return names


# ---------------------------------------------------------------------- lines of a file


class Sentence(NamedTuple):
    """Names of tokens, the last of them the next token, and the query; None for the sentence's last token."""

    sequence: tuple[str, ...]
    query: str | None = None


def _as_line(sentence: Sentence) -> str:
    """Names separated by blanks; JSON where that would be read differently."""
    plain = " ".join(sentence.sequence)
    if _from_line(plain) == sentence:
        return plain
    *tokens, following = sentence.sequence
    query = {} if sentence.query is None else {"query": sentence.query}
    return json.dumps({"tokens": tokens, "next": following} | query)


def _from_line(line: str) -> Sentence:
    """The sentence of a line that `_as_line` wrote, or of plain text; a byte order mark is dropped."""
    line = line.removeprefix("\ufeff")
    if line.startswith("{"):
        with suppress(ValueError, TypeError, KeyError):  # plain text may begin with a brace
            record = json.loads(line)
            query = record.get("query")
            return Sentence((*map(str, record["tokens"]), str(record["next"])), query and str(query))
    return Sentence(tuple(line.split()))
