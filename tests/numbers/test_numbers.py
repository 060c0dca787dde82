"""Numbers in the docs are those of the records, the claims and the report: none can go stale unseen."""

import json
import re
import runpy
import sys
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from attsvm_lab.figures.recorded import recorded

ROOT = Path(__file__).parents[2]
PIVOTAL, LARGE = "published score of pivotal words", "published count of large key weights"
MARGINS = "of the draws of the prompt claims, seeds 500 to 519"
DOCS = ROOT / "docs"
PAGES = (
    "gallery.md",
    "findings.md",
    "lab/findings.md",
    "practice/transformers.md",
    "practice/language.md",
    *(f"papers/{p.name}" for p in sorted((DOCS / "papers").glob("*.md"))),
)
DECIMAL = re.compile(r"(?<![\w.,])(?:\d+\.\d+|\d{1,3}(?:,\d{3})+)(?![\w]|\.\d)")
LOOSE = re.compile(r"[-−]?\d[\d,]*\.?\d*(?:e[-−]?\d+)?")
OTHERS = {
    "papers/sparse_signals.md": {
        "115,200": "draws in records/capacity.json",
        "0.44": "an end of their interval",
    },
    "papers/one_location.md": {"20,000": "inputs and steps of the settings"},
    "papers/match_and_copy.md": {"1.23": "at t = 1e12, where the claim does not judge"},
    "papers/benign_overfitting.md": {
        **dict.fromkeys(
            ("3,000", "4,500", "11,000", "40,000", "0.48", "5.7"), "sizes and signals of settings"
        ),
        **dict.fromkeys(("182,784", "1,024", "4,096"), "runs in records/benign_overfitting.json"),
        **dict.fromkeys(
            ("1.16", "1.76", "2.03", "1.89", "2.02", "0.075"), "shares in records/benign_overfitting.json"
        ),
        "1.49": "√(2/0.9)",
        "20,000": "seeds counted",
        "0.36": "exponent of the five published levels",
        "0.73": "the second of three draws",
    },
    "papers/even_pairs.md": {
        "0.1": "the paper's step",
        "600,000": "steps of one long run",
        "1.71": "its slopes of ‖W‖, first and last half decade",
        "1.82": "their mean log t",
    },
    "lab/findings.md": {"0.439": PIVOTAL, "0.312": PIVOTAL},
    "practice/transformers.md": {
        "25,000": "reviews of the data set",
        "150.1": "published epochs",
        "5,000": "train reviews whose mean loss stops a run",
        "298.6": "their standard deviation",
        "18,206": LARGE,
        "27,224": LARGE,
        "0.439": PIVOTAL,
        "0.312": PIVOTAL,
        "2.17": "seconds: lab/benchmarks/epochs.py on a GPU",
        "1,573": "thousands of weights of a kind: 6 · 512²",
        "0.995": "train accuracy at which a training ends",
        "50,000": "reviews, spelled once by both tokenizers",
        "7,214": "of these are longer than 512 tokens",
        "0.994": "share of the mean first token: lab/records/head_stops.json",
    },
    "practice/language.md": {
        "8,190": "pieces of the vocabulary",
        "6,897,152": "parameters",
        "6,857,586": "tokens of the train half",
        "6.32": "entropy of their frequencies, of the data",
    },
    "gallery.md": {
        "0.501": "20,000 programs, solved once",
        "6,000": "steps of a longer run, once",
        "8,000": "the published number of steps",
        "6.5": "where the usual formula stops",
        "25,000": "reviews of the data set",
        "1,800": "runs of a first look",
        **dict.fromkeys(("4,000", "11,000"), "widths of the settings of benign overfitting"),
    },
    "papers/topics.md": {"45,000": "texts of nine lengths", "1,200": "texts of a seed of the claim"},
    "papers/max_margin_selection.md": {"0.004": MARGINS, "0.73": MARGINS, "4,096": "selections: 4⁶"},
    "papers/next_token.md": {"1,800": "pairs per seed, rounded to hundreds"},
    "papers/mirror_descent.md": {"18,206": LARGE, "27,224": LARGE},
}
"""By page: numbers that no record holds, and where they come from."""


NETS = (
    *("sentiment", "vision", "vision-sparsity", "head-ranks", "head-geometry", "real-tokens", "language"),
)
"""Figures of trained nets and real tokens."""
ABOUT_NETS = ("gallery.md", "lab/findings.md", "papers/mirror_descent.md")


def prose(page):
    """A page without code, addresses and names of papers."""
    text = (DOCS / page).read_text(encoding="utf8")
    for code in (r"```.*?```", r"`[^`]*`", r"\]\([^)]*\)", r"arXiv \d{4}\.\d{5}"):
        text = re.sub(code, " ", text, flags=re.DOTALL)
    return text


def claims():
    """What docs/claims.md says of each claim: seeds that hold, seeds whose twin is told apart, numbers."""
    text = (DOCS / "claims.md").read_text(encoding="utf8")
    found = {}
    for name, entry in re.findall(r"### `(\w+)`\n(.*?)(?=\n###|\n## |\Z)", text, flags=re.DOTALL):
        counts = re.search(r"\*\*Holds:\*\* (\d+) of (\d+) .*?detected (\d+) of", entry).groups()
        measured = re.search(r"\*\*Measured:\*\* (.*)", entry).group(1)
        found[name] = dict(zip(("held", "seeds", "twin"), map(int, counts), strict=True)) | {
            "measured": measured
        }
    return found


def measured(claim, what):
    """A number that the page of claims gives, by its words."""
    return float(re.search(re.escape(what) + r" ([-\d.e]+)", claims()[claim]["measured"]).group(1))


@cache
def tables():
    """What the tables of the experiments print from the records."""
    said, before = StringIO(), sys.argv
    sys.argv = ["tables.py"]
    try:
        with redirect_stdout(said):
            for name in ("tables.py", "head_tables.py", "language_tables.py"):
                runpy.run_path(str(ROOT / "lab" / "experiments" / name), run_name="__main__")
    finally:
        sys.argv = before
    return said.getvalue()


def report():
    """What `attsvm reproduce --gallery docs` found."""
    return json.loads((DOCS / "numbers.json").read_text(encoding="utf8"))


@cache
def known(page):
    """The numbers that a page may quote: of trained nets where it is about them, else of the rest."""
    only_nets = page.startswith("practice/")
    figures = [rows for name, rows in report()["figures"].items() if name in NETS or not only_nets]
    numbers = {x for rows in figures for row in rows.values() for x in row[:2] if x is not None}
    texts = [tables()] if only_nets or page in ABOUT_NETS else []
    if not only_nets:
        texts += [one["measured"] for one in claims().values()]
        numbers |= {sum(cell) / len(cell) for cell in recorded("rank")["ranks"].values()}
    numbers |= set(report()["shuffled"])
    return numbers | {plain(x) for text in texts for x in LOOSE.findall(text)}


def plain(text):
    return float(text.replace(",", "").replace("−", "-"))


def held_by_a_record(text, page):
    """Whether some known number, or its hundredfold, is written so."""
    decimals = len(text.partition(".")[2])
    wanted = plain(text)
    half = 0.5 * 10.0**-decimals + 1e-9
    return any(abs(abs(scale * x) - wanted) <= half for x in known(page) for scale in (0.01, 1, 100))


SHARE = "share of runs at the best tokens"
QUOTED = {
    "lab/findings.md": (
        ("{share:.0f} % of the runs end at the best tokens", "descent_is_global_if_losing_scores_are_equal"),
        ("it holds on {held} of {seeds} seeds", "joint_gradient_descent_follows_the_relaxed_program"),
        ("({held} of {seeds}). The rule", "joint_gradient_descent_follows_the_program_of_its_own_ratio"),
        (
            "in the published order, on {held} of {seeds} seeds",
            "a_relu_head_trains_to_a_direction_and_a_finite_part",
        ),
    ),
    "papers/transformers_as_svms.md": (
        ("{share:.0f} % of the runs end at the best tokens", "descent_is_global_if_losing_scores_are_equal"),
        ("only {held} of {seeds} seeds", "a_relu_head_trains_to_a_direction_and_a_finite_part"),
        ("({held} of {seeds} seeds). No theorem", "key_and_query_prefer_the_nuclear_margin"),
    ),
    "papers/max_margin_selection.md": (
        ("({held} of {seeds} seeds agree", "joint_gradient_descent_follows_the_relaxed_program"),
    ),
    "papers/sinks.md": (
        ("on {held} of {seeds} fresh seeds. Where BOS", "a_sink_is_a_max_margin_selection"),
        ("without a sink, on {held} of {seeds} seeds", "relu_attention_solves_the_task_without_a_sink"),
    ),
    "papers/topics.md": (
        ("none changes the topic on {held} of {seeds} seeds", "topic_changes_vanish_in_long_texts"),
        (
            "a lower token that outnumbers all top ones, on {held} of {seeds} seeds",
            "a_topic_changes_only_where_lower_tokens_outnumber_all_top_ones",
        ),
    ),
    "papers/even_pairs.md": (
        ("The claim holds on {held} of {seeds} seeds", "the_attention_goes_on_sharpening_like_log_log_t"),
    ),
    "lab/next_token.md": (("of q/p on {held} of {seeds} seeds", "weak_tokens_fade_with_exponent_q_over_p"),),
    "papers/fast_rates.md": (
        (
            "on {held} of {seeds} fresh seeds; the twin without them is told apart on {twin}",
            "normalised_descent_selects_the_best_tokens_from_any_start",
        ),
    ),
}
"""Sentences of a page, and the claim whose counts they give."""


@pytest.mark.parametrize("page", QUOTED)
def test_what_a_page_says_of_a_claim_is_what_the_table_says(page):
    text = " ".join(prose(page).split())
    for words, name in QUOTED[page]:
        entry = claims()[name]
        share = 100 * measured(name, SHARE) if "{share" in words else 0
        assert words.format(share=share, **entry) in text


@pytest.mark.parametrize("page", PAGES)
def test_every_decimal_number_of_a_page_is_in_a_record_or_says_where_it_comes_from(page):
    unknown = [
        x
        for x in DECIMAL.findall(prose(page))
        if not held_by_a_record(x, page) and x not in OTHERS.get(page, {})
    ]
    assert not unknown


def test_a_stale_number_is_noticed_and_a_present_one_is_not():
    page = "practice/transformers.md"
    assert held_by_a_record("83.70", page) and held_by_a_record("18,397", page)
    assert not held_by_a_record("83.69", page) and not held_by_a_record("18,398", page)


CELL = re.compile(r"^\| [346], (?:1\.1|2 \(GD\)|3) \|.*$", flags=re.MULTILINE)
"""A row of a table of the movie reviews, by size and p."""


def test_tables_of_reviews_are_printed_line_by_line_with_their_counts_and_a_wrong_count_is_noticed():
    """So a mean stands over as many trainings as it says, and all of them ended."""
    rows = CELL.findall((DOCS / "practice" / "transformers.md").read_text(encoding="utf8"))
    printed = CELL.findall(tables())
    assert rows == printed and len(rows) >= 15
    counted = [row for row in rows if "(3)" in row]
    assert counted and not any(row.replace("(3)", "(4)") in printed for row in counted)


def test_no_exception_is_kept_for_a_number_that_is_gone():
    gone = {page: [x for x in each if x not in DECIMAL.findall(prose(page))] for page, each in OTHERS.items()}
    assert not any(gone.values()), gone


def test_the_gallery_begins_with_the_headline_of_these_numbers():
    assert report()["headline"] in (DOCS / "gallery.md").read_text(encoding="utf8")


def test_references_shuffled_within_a_figure_fail_in_nine_of_ten_rows():
    differ, pairs = report()["shuffled"]
    assert pairs > 1_000 and differ >= 0.9 * pairs
