"""The audit: what every attention head selects, how surely, how far from the best margin, with examples."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.comparison.verdict import cosine
from attsvm.data.tokens import Tokens
from attsvm.heads.attention import Spectrum
from attsvm.heads.detectors import KINDS, Scores, kinds, on_repeats, shares, sink
from attsvm.heads.head import Place
from attsvm.heads.model import load
from attsvm.heads.record import LayerRecord, record, sample
from attsvm.heads.surgery import ablation
from attsvm.heads.texts import LENGTH, Cut, Texts
from attsvm.norms import Norm, frobenius, nuclear
from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import cores, single_thread
from attsvm.program.constraints import Constraints
from attsvm.program.max_margin import max_margin
from attsvm.program.solution import NotSeparable

SHOWN = 3
"""Examples per head."""

MAP_BYTES = 8_000
"""Bytes of attention maps per head."""

LONGEST = 512
"""Up to so many tokens, the map of the shortest text is shown where no text fits into MAP_BYTES."""


LIMIT = (
    "The best margin is the limit of training that moves queries and keys alone. Most models also train "
    "values and outputs, which changes the target: a low ratio is no sign of undertraining."
)
"""What the share of the best margin means for a model whose values and outputs were trained."""


@dataclass(frozen=True)
class AuditSettings:
    """Settings of an audit.

    above: a selection is confident when its attention exceeds this number.
    margins: whether to solve the programs, which take most of an audit's time.
    queries: confident queries per head whose margins are computed, drawn with the seed.
    slack: price of the soft-margin program, for selections that no W makes.
    ablation: on so many of the texts every head is silenced once, which costs a forward pass per head.
    sentences: at most so many texts whose whole attention maps are kept for the page.
    length: at most so many tokens are read of each text.
    """

    above: float = 0.5
    queries: int = 32
    slack: float | None = 1.0
    margins: bool = True
    ablation: int = 0
    sentences: int = 8
    length: int = LENGTH
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.above < 1:
            raise ValueError(f"above is {self.above}. Pass an attention in [0, 1).")
        if self.queries < 1:
            raise ValueError(f"queries is {self.queries}. Pass at least 1.")
        for name in ("ablation", "sentences"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}. Pass a number of texts, 0 for none.")


@dataclass(frozen=True)
class Example:
    """One text read by one query: its pieces, the attention each receives, the kind of the selected piece.

    unread: tokens of the text that were cut off.
    """

    pieces: tuple[str, ...]
    query: int
    attention: tuple[float, ...]
    kind: str
    unread: int


@dataclass(frozen=True)
class Margins:
    """The margin of a weight and the largest margin of a norm, on the same selections.

    own: the least margin of W / N(W), 0 for W = 0; best: the margin of the solution; ratio = own / best ≤ 1.
        Where every query sees one token, own and best are infinite and the ratio is NaN.
    cosine: between W and the solution; rank: of the solution.
    conflict: why no W makes these selections, in words; then best, ratio, cosine are those of the
        soft-margin program if a slack was given, else NaN.
    """

    own: float
    best: float
    ratio: float
    cosine: float
    rank: int
    certified: bool
    conflict: str = ""


@dataclass(frozen=True)
class HeadReport:
    """One head's numbers.

    queries: positions with more than one visible token; shares: kinds of the selected tokens.
    scores: induction, duplicate token and sink (`detectors`).
    mass: mean attention on the selected token; entropy in nats; soft_sparsity: 1/Σs².
    confident: share of queries with mass above the threshold; used: how many entered the margins.
    frobenius, nuclear: the head's margin and the largest possible; None where no query is confident, or
        without the programs.
    ablation: how far the model's output moves without this head; NaN without ablations.
    stable_rank, eigenvalue_mean, eigenvalue_variance: of the QK matrix without biases (for rotary
        positions: at distance zero); NaN where the model's projections are not known.
    error: recomputed attention against the model's, on the queries used.
    """

    layer: int
    head: int
    space: str
    queries: int
    shares: dict[str, float]
    scores: Scores
    mass: float
    entropy: float
    soft_sparsity: float
    confident: float
    used: int
    frobenius: Margins | None
    nuclear: Margins | None
    stable_rank: float
    eigenvalue_mean: float
    eigenvalue_variance: float
    error: float
    examples: tuple[Example, ...]
    maps: tuple[str, ...]
    ablation: float = np.nan

    @property
    def certified(self) -> bool:
        """Whether every margin of this head is certified; it may have none."""
        return all(m.certified for m in (self.frobenius, self.nuclear) if m is not None)


@dataclass(frozen=True, repr=False)
class Audit:
    """The reports of all heads; how many texts and tokens were read; the texts that were cut.

    sentences: the texts whose maps are kept, as pieces; `HeadReport.maps` are in their order.
    """

    model: str
    texts: int
    tokens: int
    cut: tuple[Cut, ...]
    settings: AuditSettings
    sentences: tuple[tuple[str, ...], ...]
    heads: tuple[HeadReport, ...]

    @property
    def certified(self) -> int:
        """How many heads have margins that are all certified."""
        return sum(head.certified for head in self.heads if head.frobenius is not None)

    def __repr__(self) -> str:
        size = f"{self.texts} texts, {self.tokens} tokens, {len(self.cut)} cut"
        solved = f"{self.certified} certified" if self.settings.margins else "no margins"
        return f"Audit({self.model}: {len(self.heads)} heads, {solved}; {size})"


def audit(
    model: Any,
    texts: Sequence[str],
    settings: AuditSettings | None = None,
    *,
    layers: Iterable[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Audit every head of a model on texts.

    model: hub name, folder, `.gguf` file, or `load(model, tokenizer)`.
    Warns CutTexts where a text is longer than the settings say; `Audit.cut` names it.
    progress: called with (steps done, steps in all): one per head, and one more per head for an ablation.
    """
    settings = settings or AuditSettings()
    reader = load(model)
    tokenised = reader.tokenise(texts, settings.length)
    config = reader.model.config
    layers = list(range(config.num_hidden_layers) if layers is None else layers)
    total = len(layers) * config.num_attention_heads * (2 if settings.ablation else 1)
    finished = count(1)

    def on_step() -> None:
        if progress is not None:
            progress(next(finished), total)

    on_random = on_repeats(reader, layers, settings.seed)
    ablations = dict[Place, float]()
    if settings.ablation:
        ablations = ablation(reader, tokenised.rows(slice(settings.ablation)), on_random, on_step)
    reports = list[HeadReport]()
    with single_thread(), ThreadPoolExecutor(cores()) as pool:
        for layer in record(reader, tokenised, layers):
            report_of = partial(head_report, layer, texts=tokenised, settings=settings)
            for report in pool.map(report_of, range(layer.heads)):
                place = report.layer, report.head
                scores = on_random[place] | report.scores
                reports.append(replace(report, scores=scores, ablation=ablations.get(place, np.nan)))
                on_step()
    indices, lengths = mapped_texts(tokenised, settings.sentences), tokenised.lengths
    sentences = tuple(tuple(tokenised.pieces[i][: lengths[i]]) for i in indices)
    tokens, cut = int(tokenised.mask.sum()), tokenised.cut
    return Audit(reader.name, len(tokenised), tokens, cut, settings, sentences, tuple(reports))


def head_report(layer: LayerRecord, head: int, texts: Texts, settings: AuditSettings) -> HeadReport:
    """The report of one head, without what does not depend on the texts."""
    at = layer.at(head)
    selected = layer.selected(head, at)
    kind_of_query = kinds(texts, at[0], at[1], selected.token)
    confident = selected.mass > settings.above
    used = sample(at[:, confident], settings.queries if settings.margins else 0, settings.seed)
    spectrum = Spectrum()
    if layer.projections is not None:
        spectrum = layer.projections.spectrum(head, layer.scaling)
    solved = _margins(layer, head, used, settings.slack)
    return HeadReport(
        layer=layer.layer,
        head=head,
        space=layer.space,
        queries=at.shape[1],
        shares=shares(kind_of_query),
        scores={"sink": sink(layer, head, texts, at)},
        mass=float(selected.mass.mean()),
        entropy=float(selected.entropy.mean()),
        soft_sparsity=float(selected.soft_sparsity.mean()),
        confident=float(confident.mean()),
        used=used.shape[1],
        frobenius=solved.frobenius,
        nuclear=solved.nuclear,
        eigenvalue_mean=spectrum.mean,
        eigenvalue_variance=spectrum.variance,
        stable_rank=spectrum.stable_rank,
        error=solved.error,
        examples=examples(layer, head, texts, at, kind_of_query, settings.seed),
        maps=maps(layer, head, texts, settings.sentences),
    )


class HeadMargins(NamedTuple):
    """A head's margins in two norms, None where they were not computed, and `Head.error`."""

    frobenius: Margins | None = None
    nuclear: Margins | None = None
    error: float = 0.0


def _margins(layer: LayerRecord, head: int, at: NDArray[np.intp], slack: float | None) -> HeadMargins:
    """The margins on the selections of one head's queries at (2, k)."""
    if not at.size:
        return HeadMargins()
    problem = layer.head(head, at)
    in_frobenius = margins(problem.tokens, problem.selected, problem.W, frobenius, slack)
    if in_frobenius.conflict:
        return HeadMargins(in_frobenius, None, problem.error)
    in_nuclear = margins(problem.tokens, problem.selected, problem.W, nuclear)
    return HeadMargins(in_frobenius, in_nuclear, problem.error)


def margins(
    tokens: Tokens,
    selected: NDArray[Any],
    W: Float,
    norm: Norm = frobenius,
    slack: float | None = None,
) -> Margins:
    """The margin of W on the selected tokens, and the largest possible one, in the given norm.

    tokens: keys (n, T, d), queries (n, e); selected: one token index per query (n,).
    slack: the price C of the soft-margin program, which is solved where no W makes all selections.
    """
    program = Constraints.of(tokens, selected)
    least, size = program.token_margins(W)[program.separating].min(initial=np.inf), norm.value(W)
    margin_of_W = float(least / size) if size > 0 else 0.0
    try:
        solution, conflict = max_margin(tokens, selected, norm), ""
    except NotSeparable as error:
        conflict = str(error)
        if slack is None:
            return Margins(margin_of_W, np.nan, np.nan, np.nan, 0, False, conflict)
        solution = max_margin(tokens, selected, norm, slack=slack)
    best = float(solution.margin)
    return Margins(
        own=margin_of_W,
        best=best,
        ratio=margin_of_W / best,
        cosine=float(cosine(W[None], solution.W)[0]),
        rank=solution.rank,
        certified=solution.certified,
        conflict=conflict,
    )


# ---------------------------------------------------------------------- what the page shows of the texts


def examples(
    layer: LayerRecord,
    head: int,
    texts: Texts,
    at: NDArray[np.intp],
    kind_of_query: NDArray[np.intp],
    seed: int,
) -> tuple[Example, ...]:
    """Examples of a head's queries at (2, k), which select tokens of the given kinds (k,)."""
    mass = layer.selected(head, at).mass
    rng = np.random.default_rng((seed, layer.layer, head))
    queries = representative(at[0], kind_of_query, mass, texts.special[at[0], at[1]], rng)
    return tuple(_example(layer, head, texts, at[:, k], KINDS[kind_of_query[k]]) for k in queries)


def representative(
    text: NDArray[np.intp],
    kind: NDArray[np.intp],
    mass: Float,
    special: Bool,
    rng: np.random.Generator,
) -> list[int]:
    """Indices of SHOWN queries: the most frequent kind first, each kind by its share and from the half of its
    queries with most attention, each query of another text.

    The queries with most attention alone would mislead: those of a previous-token head are first words, which
    attend to [CLS]. Queries of special tokens count only where there are no other queries.
    """
    candidates = np.flatnonzero(~special) if not special.all() else np.arange(len(special))
    queries: list[int] = []
    counts = np.bincount(kind[candidates], minlength=len(KINDS))
    places = _places(counts)
    for k in np.argsort(-counts, kind="stable"):
        of_kind = candidates[kind[candidates] == k]
        surer = of_kind[np.argsort(-mass[of_kind])][: max(places[k], (len(of_kind) + 1) // 2)]
        order = rng.permutation(surer).tolist()
        for _ in range(min(places[k], len(order))):
            used_texts = set(text[queries].tolist())
            queries.append(next((query for query in order if text[query] not in used_texts), order[0]))
            order.remove(queries[-1])
    return queries


def mapped_texts(texts: Texts, limit: int) -> list[int]:
    """The first texts whose maps fit into MAP_BYTES together, at most so many; if none does, the shortest,
    unless it is longer than LONGEST.
    """
    mapped, free_bytes = list[int](), MAP_BYTES
    for text, length in enumerate(texts.lengths.tolist()):
        if len(mapped) < limit and length**2 <= free_bytes:
            mapped.append(text)
            free_bytes -= length**2
    shortest = int(texts.lengths.argmin())
    return mapped or [shortest][: limit if texts.lengths[shortest] <= LONGEST else 0]


def maps(layer: LayerRecord, head: int, texts: Texts, limit: int) -> tuple[str, ...]:
    """One head's attention (T, T) on every mapped text: a byte per pair, 255 for attention one, in base64."""
    encoded = []
    for text in mapped_texts(texts, limit):
        length = int(texts.lengths[text])
        at = np.array([np.full(length, text), np.arange(length)])
        attention = layer.attention(head, at)[:, :length]
        encoded.append(b64encode(np.round(255 * attention).astype(np.uint8).tobytes()).decode("ascii"))
    return tuple(encoded)


def _places(counts: NDArray[np.intp]) -> list[int]:
    """SHOWN places, allotted to the kinds by the largest remainders; none to a kind without a query."""
    shares = SHOWN * counts / max(counts.sum(), 1)
    places = shares.astype(int)
    missing = round(shares.sum()) - places.sum()
    places[np.argsort(places - shares, kind="stable")[:missing]] += 1
    return places.tolist()


def _example(layer: LayerRecord, head: int, texts: Texts, at: NDArray[np.intp], kind: str) -> Example:
    text, position = map(int, at)
    length = int(texts.lengths[text])
    attention = layer.attention(head, at[:, None])[0, :length]
    return Example(
        pieces=tuple(texts.pieces[text][:length]),
        query=position,
        attention=tuple(round(float(a), 4) for a in attention),
        kind=kind,
        unread=int(texts.full_lengths[text]) - length,
    )
