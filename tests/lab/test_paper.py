"""The paper says what the records say: its tables, its references, and the numbers in its text."""

import copy
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import attsvm as att
from attsvm_lab.programs import leaving_exponent

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "paper"
MAIN = (PAPER / "main.tex").read_text(encoding="utf8")
SOURCES = {file.name: file.read_text(encoding="utf8") for file in PAPER.glob("*.tex")}
PAGE = "\n".join(
    (ROOT / "docs" / name).read_text(encoding="utf8") for name in ("law_of_halves.md", "lab/law.md")
)
PAGES = [PAGE, (ROOT / "docs" / "practice" / "transformers.md").read_text(encoding="utf8")]
NUMBER = re.compile(r"(?<![\w.,^_{(/])\d[\d,]*(?:\.\d+)?(?![\w}])")
SETTINGS = {"0.3", "10", "12", "24"}
"""Typed numbers of the text that a setting of lab/benchmarks/law_of_halves.py has, and no page."""


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build_the_paper", PAPER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(build):
    return build.tables()


def numbers_of(line):
    """The numbers with a decimal of a line of a table, sorted: the paper has another order than the page."""
    return tuple(sorted(re.findall(r"\d+\.\d+", line)))


def missing_rows(table, page):
    """Lines of a table of the paper whose numbers no line of the page has all of."""
    rows = [numbers_of(line) for line in page.splitlines() if line.startswith("|")]
    body = table.split(r"\midrule")[1].split(r"\bottomrule")[0]
    lines = [line for line in body.splitlines() if numbers_of(line)]
    assert lines
    return [line for line in lines if not any(set(numbers_of(line)) <= set(row) for row in rows)]


@pytest.mark.parametrize("name", ["factors", "pairs", "exponents", "when", "nets", "heads"])
def test_a_table_of_the_paper_has_the_numbers_of_the_page(tables, name):
    table, page = tables[name], PAGES[name == "heads"]
    assert missing_rows(table, page) == []
    number = re.findall(r"\d+\.\d+", table.split(r"\midrule")[1])[-1]
    assert missing_rows(table.replace(number, "17.35"), page)


def test_the_page_has_the_table_of_the_record_of_heads(build):
    runs = build.json.loads(build.HEADS.read_text(encoding="utf8"))["runs"]
    lines = build.head_stop_table.table(runs)
    assert [line for line in lines if line not in PAGES[1]] == []
    changed = copy.deepcopy(runs)
    changed["adam-0.1-0"]["added"][-1] += 1
    assert [line for line in build.head_stop_table.table(changed) if line not in PAGES[1]]


def test_the_page_has_the_tables_of_the_record(build):
    benchmark, record = build.law_of_halves, build.law_of_halves.recorded()
    lines = [line for table in benchmark.tables(record).values() for line in table]
    assert len(lines) > 40
    assert [line for line in lines if line not in PAGE] == []
    changed = copy.deepcopy(record)
    changed["pairs"]["rows"][0]["shares"][0][0] -= 1
    assert [line for line in benchmark.tables(changed)["pairs"] if line not in PAGE]


def unresolved(sources, bibliography, generated):
    """What \\ref, \\eqref, \\cite and \\input name, and nothing defines."""
    text = re.sub(r"(?<!\\)%.*", "", "\n".join(sources.values()))
    labels, entries = set(re.findall(r"\\label\{(.+?)\}", text)), re.findall(r"@\w+\{(.+?),", bibliography)
    cited = {key.strip() for keys in re.findall(r"\\cite\{(.+?)\}", text) for key in keys.split(",")}
    files = {f"generated/{name}" for name in generated} | {Path(name).stem for name in sources}
    names = set(re.findall(r"\\(?:eq)?ref\{(.+?)\}", text)) - labels
    return names | cited - set(entries) | set(re.findall(r"\\input\{(.+?)\}", text)) - files


def test_every_reference_resolves(tables):
    bibliography = (PAPER / "references.bib").read_text(encoding="utf8")
    assert unresolved(SOURCES, bibliography, tables) == set()
    broken = SOURCES | {"more.tex": r"\ref{thm:none} \cite{lyu2020, nobody2020} \input{generated/none}"}
    assert unresolved(broken, bibliography, tables) == {"thm:none", "nobody2020", "generated/none"}


def test_every_work_that_is_listed_is_cited():
    entries = re.findall(r"@\w+\{(.+?),", (PAPER / "references.bib").read_text(encoding="utf8"))
    text = "".join(SOURCES.values())
    assert [entry for entry in entries if entry not in text] == []


def typed_numbers(text):
    """Numbers of two digits or more in the sentences of the text: not in lengths, formulas or commands."""
    text = text.split(r"\begin{abstract}")[1].split(r"\bibliographystyle")[0]
    text = re.sub(r"(?<!\\)%.*|\\(?:includegraphics|begin|label|ref|input)(?:\[.*?\])?\{.*?\}", "", text)
    return {number.rstrip(",") for number in NUMBER.findall(text) if len(number.rstrip(",")) > 1}


def unknown(numbers):
    known = {number for page in PAGES for number in re.findall(r"\d[\d,]*(?:\.\d+)?", page)}
    return numbers - {number.rstrip(",") for number in known} - SETTINGS


def test_every_number_typed_in_the_text_is_on_a_page():
    assert len(typed_numbers(MAIN)) > 20
    assert unknown(typed_numbers(MAIN)) == set()
    assert unknown(typed_numbers(MAIN.replace("95.7 percent", "95.23 percent"))) == {"95.23"}


def test_the_page_has_the_numbers_of_the_stops(tables):
    commands = dict(re.findall(r"\\newcommand\{\\(\w+)\}\{(.+)\}", tables["numbers"]))
    words = "stand at a stop after 10,000 steps, and still after 20,000"
    assert f"Of {commands['StopDraws']} draws from near rank one" in PAGE
    assert f"{commands['StopPowers']} {words}" in PAGE
    assert f"{commands['StopLeast']} to {commands['StopLargest']}" in PAGE
    assert f"median {commands['StopRatio']}, between 0.9 and 1.1\nfor {commands['StopNear']} draws" in PAGE
    assert f"none grows faster by more than {commands['StopAbove']} percent" in PAGE


def test_the_study_of_waiting_is_counted_from_its_record(build, tables):
    cells = build.recorded("waiting")["cells"]
    counts = [re.findall(r"& (\d+) & (\d+) & (\d+) &", line) for line in tables["waits"].splitlines()]
    stops, left, agree = np.array([row[0] for row in counts if row], int).sum(0)
    assert (stops, left, agree) == tuple(
        sum(cell[key] for cell in cells) for key in ("stops", "left", "agree")
    )
    commands = build.waiting_numbers(cells)
    assert (commands["WaitStops"], commands["WaitAgree"]) == (f"{stops:,}", f"{agree:,}")
    changed = [{**cells[0], "agree": cells[0]["agree"] - 1}, *cells[1:]]
    assert build.waiting_numbers(changed)["WaitAgree"] == f"{agree - 1:,}"


def test_every_command_for_a_number_is_used_and_every_used_one_is_made(tables):
    made = set(re.findall(r"\\newcommand\{\\(\w+)\}", tables["numbers"]))
    used = set(re.findall(r"\\((?:Factor|Pair|Diagonal|Grid|Stop|Picture|Wait|When)\w*)", MAIN))
    assert made == used


@pytest.mark.parametrize(("degrees", "status"), [(60, "stop"), (40, "limit")])
def test_the_example_of_two_inputs_waits_above_45_degrees_with_the_stated_exponent(degrees, status):
    φ = np.radians(degrees)
    differences = np.array([[np.cos(φ), np.sin(φ)], [np.cos(φ), -np.sin(φ)]])
    keys = np.stack([differences, np.zeros((2, 2))], axis=1)
    tokens, v = att.Tokens(keys, differences, labels=np.ones(2)), np.array([1.0, 0.0])
    start = {name: np.diag([0.3, 1e-6]) for name in "KQ"}
    rule = att.steepest(att.frobenius, 0.003)
    run = att.train(tokens, att.Linear(v), weight=att.KeyQuery(), optimizer=rule, steps=4_000, init=start)
    point = att.kkt_point(run, v)
    assert point.status == status
    late = run.index >= 2_000
    first, spare = np.linalg.svd(run.W[late])[1].T
    ρ = np.sqrt((run.K[late] ** 2).sum((1, 2)) + (run.Q[late] ** 2).sum((1, 2)))
    observed = np.polyfit(np.log(ρ), np.log(spare / first), 1)[0]
    assert observed == pytest.approx(2 * (np.tan(φ) ** 2 - 1), abs=0.02)
    if status == "stop":
        assert leaving_exponent(point) == pytest.approx(4, abs=1e-6)
        assert point.share == pytest.approx(1 / 3, abs=1e-3)  # cot² φ
