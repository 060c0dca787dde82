"""Sequences of token names → numbers: the last entry of each sequence is the next token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


def collocations(sequences: Sequence[Sequence[Any]]) -> dict[str, str]:
    """The map x → n(x) that sequences of two tokens teach; longer sequences are passed over.

    Raises ValueError, showing both sequences, when they contradict each other.
    """
    found: dict[str, tuple[str, int]] = {}
    for i, sequence in enumerate(sequences):
        if len(sequence) == 2:
            x, y = map(str, sequence)
            before, first = found.setdefault(x, (y, i))
            if before != y:
                raise ValueError(
                    f"no collocation: {x!r} is followed by {before!r} in sentence {first} and by {y!r} "
                    f"in sentence {i}. A token alone must announce one next token."
                )
    return {x: y for x, (y, _) in found.items()}


def vocabulary_of(
    named: Sequence[Sequence[str]], others: Sequence[str], vocabulary: Sequence[Any] | None
) -> tuple[str, ...]:
    """The names of the vocabulary: those given, or all in the order they appear; shows an unknown one.

    others: names that collocations and queries mention beside the sentences.
    """
    if vocabulary is None:
        return tuple(dict.fromkeys([*(x for sequence in named for x in sequence), *others]))
    names = tuple(map(str, vocabulary))
    known = set(names)
    for i, sequence in enumerate(named):
        unknown = next((x for x in sequence if x not in known), None)
        if unknown is not None:
            text = " ".join(sequence)
            raise ValueError(
                f'sentence {i} "{text}" has the unknown token {unknown!r}. Add it to the vocabulary.'
            )
    unknown = next((x for x in others if x not in known), None)
    if unknown is not None:
        raise ValueError(
            f"a collocation or query has the unknown token {unknown!r}. Add it to the vocabulary."
        )
    return names


def numbered(
    named: Sequence[Sequence[str]], number: Mapping[str, int]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Sentences as token numbers (n, T), −1 beyond their end, and their next tokens (n,)."""
    lengths = np.array([len(sequence) - 1 for sequence in named])
    flat = np.array([number[x] for sequence in named for x in sequence[:-1]], dtype=np.intp)
    ids = np.full((len(named), lengths.max()), -1)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = flat
    return ids, np.array([number[sequence[-1]] for sequence in named], dtype=np.intp)


# ---------------------------------------------------------------------- one line of a file


class Sentence(NamedTuple):
    """Names, the last of them the next token, and the token that asks: None for the last of the sentence."""

    sequence: tuple[str, ...]
    query: str | None = None


def as_line(sentence: Sentence) -> str:
    """Names apart by blanks; as JSON where that would not read back: names with blanks, another query."""
    plain = " ".join(sentence.sequence)
    if from_line(plain) == sentence:
        return plain
    *tokens, following = sentence.sequence
    asked = {} if sentence.query is None else {"query": sentence.query}
    return json.dumps({"tokens": tokens, "next": following} | asked)


def from_line(line: str) -> Sentence:
    """The sentence of a line that `as_line` wrote, or of plain text; a byte order mark is no part of it."""
    line = line.removeprefix("\ufeff")
    if line.startswith("{"):
        with suppress(ValueError, TypeError, KeyError):  # a text may begin so
            record = json.loads(line)
            query = record.get("query")
            return Sentence((*map(str, record["tokens"]), str(record["next"])), query and str(query))
    return Sentence(tuple(line.split()))
