"""The audit: what every head of a model selects, how surely, and how far from the best margin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.ablation import ablation
from attsvm.heads.detectors import Scores, on_repeats, sink
from attsvm.heads.examples import Example, examples
from attsvm.heads.extract import sample
from attsvm.heads.head import Place
from attsvm.heads.kinds import kinds, shares
from attsvm.heads.margins import Margins, margins
from attsvm.heads.model import Reader, load
from attsvm.heads.record import LayerRecord, record
from attsvm.heads.sentences import maps, shown
from attsvm.heads.successor import successor
from attsvm.heads.texts import LENGTH, Cut, Texts
from attsvm.norms import frobenius, nuclear
from attsvm.numbers.threads import cores, single_thread
from attsvm.workers import using


@dataclass(frozen=True)
class Settings:
    """What an audit looks at.

    above: a selection is confident when its attention exceeds this number.
    margins: whether the programs are solved; describing the heads takes seconds, the programs take the rest.
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
class HeadReport:
    """One head's numbers.

    queries: positions with more than one visible token; shares: kinds of the selected tokens.
    scores: induction, duplicate token, sink (`detectors`) and successor, NaN where it is not defined.
    mass: mean attention on the selected token; entropy in nats; soft_sparsity: 1/Σs².
    confident: share of queries with mass above the threshold; used: how many entered the margins.
    frobenius, nuclear: margins beside the best; None where no query is confident, or none was asked for.
    ablation: how far the model's output moves without this head; NaN where it was not asked for.
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
    """The reports of all heads, and what was read: texts, tokens, and the texts that were cut.

    sentences: the texts whose maps are kept, as pieces; `HeadReport.maps` are in their order.
    """

    model: str
    texts: int
    tokens: int
    cut: tuple[Cut, ...]
    settings: Settings
    sentences: tuple[tuple[str, ...], ...]
    heads: tuple[HeadReport, ...]

    @property
    def certified(self) -> int:
        """How many heads have margins, and all of them certified."""
        return sum(head.certified for head in self.heads if head.frobenius is not None)

    def __repr__(self) -> str:
        read = f"{self.texts} texts, {self.tokens} tokens, {len(self.cut)} cut"
        solved = f"{self.certified} certified" if self.settings.margins else "no margins"
        return f"Audit({self.model}: {len(self.heads)} heads, {solved}; {read})"


def audit(
    model: Any,
    texts: Sequence[str],
    settings: Settings | None = None,
    *,
    layers: Iterable[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    executor: Executor | None = None,
) -> Audit:
    """Audit every head of a model on texts.

    model: hub name, folder, `.gguf` file, or `load(model, tokenizer)`.
    Warns CutTexts where a text is longer than the settings say; `Audit.cut` names it.
    progress: called with (steps done, steps in all): one per head, and one more per head for an ablation.
    executor: where the heads run; by default threads, which need no copy of what a layer recorded.
    """
    settings = settings or Settings()
    reader = load(model)
    read = reader.tokenise(texts, settings.length)
    config = reader.model.config
    layers = list(range(config.num_hidden_layers) if layers is None else layers)
    count, reports = Count(len(layers) * config.num_attention_heads, settings, progress), list[HeadReport]()
    known = _known(reader, read, layers, settings, count)
    with single_thread(), ThreadPoolExecutor(cores()) as threads, using(executor or threads, 2) as pool:
        for layer in record(reader, read, layers):
            look = partial(one, layer, texts=read, settings=settings)
            for report in pool.map(look, range(layer.heads)):
                scores, moved = known[report.layer, report.head]
                reports.append(replace(report, scores=scores | report.scores, ablation=moved))
                count.step()
    kept = tuple(tuple(read.pieces[i][: read.lengths[i]]) for i in shown(read, settings.sentences))
    return Audit(reader.name, len(read), int(read.mask.sum()), read.cut, settings, kept, tuple(reports))


def one(layer: LayerRecord, head: int, texts: Texts, settings: Settings) -> HeadReport:
    """The report of one head."""
    at = layer.at(head)
    selected = layer.selected(head, at)
    found = kinds(texts, at[0], at[1], selected.token)
    sure = selected.mass > settings.above
    used = sample(at[:, sure], settings.queries if settings.margins else 0, settings.seed)
    spectrum = (np.nan,) * 3
    if layer.projections is not None:
        spectrum = layer.projections.spectrum(head, layer.scaling)
    space, both, error = _margins(layer, head, used, settings)
    return HeadReport(
        layer=layer.layer,
        head=head,
        space=space,
        queries=at.shape[1],
        shares=shares(found),
        scores={"sink": sink(layer, head, texts, at)},
        mass=float(selected.mass.mean()),
        entropy=float(selected.entropy.mean()),
        soft_sparsity=float(selected.soft_sparsity.mean()),
        confident=float(sure.mean()),
        used=used.shape[1],
        frobenius=both[0],
        nuclear=both[1],
        eigenvalue_mean=spectrum[0],
        eigenvalue_variance=spectrum[1],
        stable_rank=spectrum[2],
        error=error,
        examples=examples(layer, head, texts, at, found, settings.seed),
        maps=maps(layer, head, texts, settings.sentences),
    )


# ---------------------------------------------------------------------- details


class Count:
    """Steps done of an audit, told to whoever asked."""

    def __init__(self, heads: int, settings: Settings, told: Callable[[int, int], None] | None) -> None:
        self.done, self.total, self.told = 0, heads * (2 if settings.ablation else 1), told

    def step(self) -> None:
        self.done += 1
        if self.told is not None:
            self.told(self.done, self.total)


def _known(
    reader: Reader, texts: Texts, layers: Sequence[int], settings: Settings, count: Count
) -> dict[Place, tuple[Scores, float]]:
    """What does not depend on the texts, and the ablation, of every head."""
    repeated, next_word = on_repeats(reader, layers, settings.seed), successor(reader)
    moved = (
        ablation(reader, texts.first(settings.ablation), repeated, count.step) if settings.ablation else {}
    )
    return {
        place: (scores | {"successor": next_word.get(place, np.nan)}, moved.get(place, np.nan))
        for place, scores in repeated.items()
    }


Both = tuple[Margins | None, Margins | None]


def _margins(
    layer: LayerRecord, head: int, at: NDArray[np.intp], settings: Settings
) -> tuple[str, Both, float]:
    if not at.size:
        return layer.space, (None, None), 0.0
    one = layer.head(head, at)
    hard = margins(one.tokens, one.selected, one.W, frobenius, settings.slack)
    low = None if hard.conflict else margins(one.tokens, one.selected, one.W, nuclear)
    return one.space, (hard, low), one.error
