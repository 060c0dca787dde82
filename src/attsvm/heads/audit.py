"""The audit: what every head of a model selects, how surely, and how far from the best margin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm._support.workers import using
from attsvm.heads.detectors import Scores, kinds, on_repeats, shares, sink, successor
from attsvm.heads.examples import Example, examples, mapped_texts, maps
from attsvm.heads.extract import sample
from attsvm.heads.head import Place
from attsvm.heads.margins import Margins, margins
from attsvm.heads.model import Reader, load
from attsvm.heads.record import LayerRecord, record
from attsvm.heads.surgery import ablation
from attsvm.heads.texts import LENGTH, Cut, Texts
from attsvm.norms import frobenius, nuclear
from attsvm.numbers.threads import cores, single_thread


@dataclass(frozen=True)
class Settings:
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
class HeadReport:
    """One head's numbers.

    queries: positions with more than one visible token; shares: kinds of the selected tokens.
    scores: induction, duplicate token, sink (`detectors`) and successor, NaN where it is not defined.
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
    settings: Settings
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
    executor: computes the heads; by default threads, which need no copy of a layer's record.
    """
    settings = settings or Settings()
    reader = load(model)
    tokenised = reader.tokenise(texts, settings.length)
    config = reader.model.config
    layers = list(range(config.num_hidden_layers) if layers is None else layers)
    steps = StepCount(len(layers) * config.num_attention_heads, settings, progress)
    reports = list[HeadReport]()
    scores_of, ablation_of = _scores_and_ablation(reader, tokenised, layers, settings, steps)
    with single_thread(), ThreadPoolExecutor(cores()) as threads, using(executor or threads, 2) as pool:
        for layer in record(reader, tokenised, layers):
            report_of = partial(head_report, layer, texts=tokenised, settings=settings)
            for report in pool.map(report_of, range(layer.heads)):
                place = report.layer, report.head
                scores, moved = scores_of[place] | report.scores, ablation_of.get(place, np.nan)
                reports.append(replace(report, scores=scores, ablation=moved))
                steps.step()
    indices, lengths = mapped_texts(tokenised, settings.sentences), tokenised.lengths
    sentences = tuple(tuple(tokenised.pieces[i][: lengths[i]]) for i in indices)
    tokens, cut = int(tokenised.mask.sum()), tokenised.cut
    return Audit(reader.name, len(tokenised), tokens, cut, settings, sentences, tuple(reports))


def head_report(layer: LayerRecord, head: int, texts: Texts, settings: Settings) -> HeadReport:
    """The report of one head, without what does not depend on the texts."""
    at = layer.at(head)
    selected = layer.selected(head, at)
    kind_of_query = kinds(texts, at[0], at[1], selected.token)
    confident = selected.mass > settings.above
    used = sample(at[:, confident], settings.queries if settings.margins else 0, settings.seed)
    spectrum = (np.nan,) * 3
    if layer.projections is not None:
        spectrum = layer.projections.spectrum(head, layer.scaling)
    space, frobenius_margins, nuclear_margins, error = _margins(layer, head, used, settings)
    return HeadReport(
        layer=layer.layer,
        head=head,
        space=space,
        queries=at.shape[1],
        shares=shares(kind_of_query),
        scores={"sink": sink(layer, head, texts, at)},
        mass=float(selected.mass.mean()),
        entropy=float(selected.entropy.mean()),
        soft_sparsity=float(selected.soft_sparsity.mean()),
        confident=float(confident.mean()),
        used=used.shape[1],
        frobenius=frobenius_margins,
        nuclear=nuclear_margins,
        eigenvalue_mean=spectrum[0],
        eigenvalue_variance=spectrum[1],
        stable_rank=spectrum[2],
        error=error,
        examples=examples(layer, head, texts, at, kind_of_query, settings.seed),
        maps=maps(layer, head, texts, settings.sentences),
    )


# ---------------------------------------------------------------------- details


class StepCount:
    """Counts the steps of an audit and reports them to the caller's function, if there is one."""

    def __init__(self, heads: int, settings: Settings, progress: Callable[[int, int], None] | None) -> None:
        self.count, self.total, self.progress = 0, heads * (2 if settings.ablation else 1), progress

    def step(self) -> None:
        self.count += 1
        if self.progress is not None:
            self.progress(self.count, self.total)


def _scores_and_ablation(
    reader: Reader, texts: Texts, layers: Sequence[int], settings: Settings, steps: StepCount
) -> tuple[dict[Place, Scores], dict[Place, float]]:
    """Of every head the scores that do not depend on the texts, and the ablation if there is one."""
    on_random, on_words = on_repeats(reader, layers, settings.seed), successor(reader)
    moved = dict[Place, float]()
    if settings.ablation:
        moved = ablation(reader, texts.first(settings.ablation), on_random, steps.step)
    scores = {place: score | {"successor": on_words.get(place, np.nan)} for place, score in on_random.items()}
    return scores, moved


def _margins(
    layer: LayerRecord, head: int, at: NDArray[np.intp], settings: Settings
) -> tuple[str, Margins | None, Margins | None, float]:
    """The space of the head's tokens, its margins in the Frobenius and nuclear norm, and its error."""
    if not at.size:
        return layer.space, None, None, 0.0
    problem = layer.head(head, at)
    in_frobenius = margins(problem.tokens, problem.selected, problem.W, frobenius, settings.slack)
    in_nuclear = None
    if not in_frobenius.conflict:
        in_nuclear = margins(problem.tokens, problem.selected, problem.W, nuclear)
    return problem.space, in_frobenius, in_nuclear, problem.error
