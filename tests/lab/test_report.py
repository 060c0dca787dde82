"""Running figures, keeping them, and the page they end on."""

import json
import math
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas

from attsvm._support.pages import code
from attsvm_lab import figures, reproduce
from attsvm_lab.claims import claims
from attsvm_lab.claims.run import Row
from attsvm_lab.figures import Check, Figure, Paper
from attsvm_lab.report import Report, page, summary, write_gallery, write_report
from attsvm_lab.workers import SerialExecutor
from tests import commands
from tests.browsers import driven, elements


class Experiment:
    """Counts how often it runs."""

    runs = 0

    def __call__(self, steps):
        self.runs += 1
        return {"numbers": np.arange(steps), "last": np.array(steps)}


def draw(arrays):
    canvas = Canvas(figsize=(3, 2))
    axes = canvas.add_subplot()
    axes.plot(arrays["numbers"])
    axes.set_title("a & b")
    return canvas


def check(reference, provenance="printed", **more):
    exact = figures.exactly()
    return lambda arrays: [
        Check("last <number>", provenance, "nobody", reference, arrays["last"], exact, "a reason", **more)
    ]


def with_recipe(reference, theirs):
    """Two rows of one published number: as the paper computes it, and ours."""

    def rows(arrays):
        recipe = Check("theirs", "printed", "nobody", reference, theirs, figures.exactly(), item="last")
        own = Check(
            "ours", "printed", "nobody", reference, arrays["last"], figures.exactly(), "", "last", recipe
        )
        return [recipe, own]

    return rows


@pytest.fixture
def toys(monkeypatch):
    """Two figures in this process: one with a drawing, one without."""
    sizes = {"quick": {"steps": 3}, "default": {"steps": 4}, "paper": {"steps": 5}}
    note = "No <note> on `a_b` and W^mm."
    drawn = Figure("drawn", "Drawn & shown", "It rises.", Experiment(), sizes, draw, check(3.0), note)
    table = Figure("table", "A table", "It counts.", Experiment(), sizes, None, check(3.0, "read off a plot"))
    return install(monkeypatch, drawn, table)


def install(monkeypatch, *chosen):
    monkeypatch.setattr(figures, "ALL", {figure.name: figure for figure in chosen})
    monkeypatch.setattr(summary, "PAPERS", (Paper("toys", "Toys", "nobody", chosen),))
    monkeypatch.setattr(reproduce, "using", lambda executor, jobs: nullcontext(SerialExecutor()))
    return chosen


def report_of(out, scale="quick"):
    return Report(scale, tuple(reproduce.reproduce(list(figures.ALL), scale, out)))


def run(out, *options):
    return commands.run("reproduce", "--scale", "quick", "--out", out, *options)


# ---------------------------------------------------------------------- running and keeping


def test_a_finished_figure_is_computed_again_only_if_something_changed(toys, tmp_path, monkeypatch):
    first, again = report_of(tmp_path), report_of(tmp_path)
    assert first == again
    assert [figure.experiment.runs for figure in toys] == [1, 1]
    monkeypatch.setattr(reproduce, "code_fingerprint", lambda *rooms: "other code")
    report_of(tmp_path)
    report_of(tmp_path, "default")
    assert [figure.experiment.runs for figure in toys] == [3, 3]


def test_an_interrupted_run_resumes_where_it_stopped(toys, tmp_path, monkeypatch):
    def interrupted(steps):
        raise KeyboardInterrupt

    install(monkeypatch, toys[0], replace(toys[1], experiment=interrupted))
    stopped = run(tmp_path)
    assert (stopped.exit_code, "run the same command again to resume" in stopped.stderr) == (130, True)
    install(monkeypatch, *toys)
    assert run(tmp_path).exit_code == 0
    assert [figure.experiment.runs for figure in toys] == [1, 1]


def test_a_figure_that_fails_is_told_and_the_others_are_kept(toys, tmp_path, monkeypatch):
    install(monkeypatch, replace(toys[0], draw=lambda arrays: arrays["nothing"]), toys[1])
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "KeyError: 'nothing'" in done.stderr
    assert "Not computed. KeyError" in (tmp_path / "report.html").read_text(encoding="utf8")
    assert reproduce.stored("drawn", "quick", tmp_path) is None
    assert reproduce.stored("table", "quick", tmp_path).checks[0].agrees


@pytest.mark.parametrize(
    ("reference", "kind", "code", "told"),
    [(3.0, "printed", 0, False), (4.0, "printed", 0, True), (4.0, "derived", 1, True)],
)
def test_a_number_that_differs_is_printed_and_one_that_we_derived_is_an_error(
    toys, tmp_path, monkeypatch, reference, kind, code, told
):
    install(monkeypatch, replace(toys[1], checks=check(reference, kind)))
    done = run(tmp_path)
    assert done.exit_code == code
    assert (f"{kind} 4, ours 3" in done.stdout) == told
    assert "a reason" in (tmp_path / "report.html").read_text(encoding="utf8")


def test_every_status_is_in_the_headline_and_a_published_number_counts_once(toys, tmp_path, monkeypatch):
    rows = {
        "agrees": check(3.0),
        "recipe": with_recipe(4.0, 4.0),
        "unexplained": with_recipe(4.0, 5.0),
        "short": check(3.0, short="1 of 9 epochs"),
        "weak": lambda arrays: [Check("wide", "read off a plot", "nobody", 3.0, 3.0, figures.axis(0, 100))],
    }
    install(monkeypatch, *(replace(toys[1], name=name, checks=made) for name, made in rows.items()))
    report = report_of(tmp_path)
    assert report.sentence == (
        "Of 5 published numbers, 2 agree (1 in a comparison too coarse to fail) and 3 do not: "
        "1 because the paper computed otherwise (its recipe, repeated here, gives its number), "
        "1 because the comparison still lacks runs, 1 without an explanation."
    )
    text = page(report, tmp_path)
    assert "theirs: 4" in text and "1 of 9 epochs" in text
    assert "within more than half of the number" in text


def test_the_counts_of_the_page_add_up_to_the_headline(toys, tmp_path, monkeypatch):
    made = (with_recipe(4.0, 4.0), check(3.0), check(3.0, "read off a plot"), check(9.0, "independent run"))
    install(monkeypatch, *(replace(toys[1], name=f"f{k}", checks=rows) for k, rows in enumerate(made)))
    report = report_of(tmp_path)
    published = [report.by_kind[kind] for kind in ("printed", "read off a plot")]
    assert sum(published, start=Counter()) == report.items
    rows = counts_of(page(report, tmp_path))
    assert rows["printed"] == [1, 0, 1, 0, 0, 2] and rows["published"] == [2, 0, 1, 0, 0, 3]
    assert all(sum(row[:-1]) == row[-1] for row in rows.values())
    kinds = [row for name, row in rows.items() if name not in ("published", "all")]
    assert [sum(column) for column in zip(*kinds, strict=True)] == rows["all"]
    assert report.results[0].kinds == "0 of 1 printed"
    assert report.sentence.startswith("Of 3 published numbers, 2 agree and 1 does not: 1 because")


def counts_of(text):
    """The rows of the table of counts, by their first cell."""
    table = re.search(r'<div class="table counts.*?</table>', text, re.DOTALL)[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr class=.*?</tr>", table)]
    return {name: [int(number) for number in numbers] for name, *numbers in rows}


def test_numbers_of_one_name_are_all_kept_in_the_file(toys, tmp_path, monkeypatch):
    def rows(arrays):
        return [*check(3.0)(arrays), *check(4.0, "independent run")(arrays)]

    install(monkeypatch, replace(toys[0], checks=rows))
    write_gallery(report_of(tmp_path), tmp_path, tmp_path)
    kept = json.loads((tmp_path / "numbers.json").read_text(encoding="utf8"))["figures"]["drawn"]
    assert sorted(row[0] for row in kept.values()) == [3.0, 4.0]
    install(monkeypatch, replace(toys[0], checks=lambda arrays: [*check(3.0)(arrays), *check(4.0)(arrays)]))
    with pytest.raises(ValueError, match="rows of one name and kind: last <number> \\(printed\\)"):
        write_gallery(report_of(tmp_path / "other"), tmp_path, tmp_path)


@pytest.mark.parametrize(("accuracy", "share"), [(figures.digits(1), 1.0), (figures.axis(0, 100), 0.0)])
def test_the_page_says_what_shuffled_references_would_give(toys, tmp_path, monkeypatch, accuracy, share):
    def rows(arrays):
        numbers = (4.0, 5.0, 6.0)
        return [Check(f"row {x:g}", "printed", "nobody", x, x, accuracy) for x in numbers]

    install(monkeypatch, replace(toys[0], checks=rows))
    report = report_of(tmp_path)
    differ, pairs = report.shuffled
    assert (differ, pairs) == ((6, 6) if share else (0, 0))
    assert ("100% of our numbers would differ (6 of 6 pairs)" in page(report, tmp_path)) == bool(share)


def test_an_unknown_figure_or_scale_is_told_where_the_known_ones_are(toys, tmp_path):
    done = run(tmp_path, "--only", "nothing")
    assert (done.exit_code, done.stderr) == (
        64,
        "no figure 'nothing'. All of them: attsvm reproduce --list.\n",
    )
    assert "Did you mean drawn?" in run(tmp_path, "--only", "dawn").stderr
    assert "Pass quick, default, paper" in run(tmp_path, "--scale", "huge").stderr


def test_the_longest_figures_are_started_first(toys, tmp_path, monkeypatch):
    began, make = [], reproduce.make
    monkeypatch.setattr(reproduce, "make", lambda name, *rest: began.append(name) or make(name, *rest))
    drawn, table = (
        replace(figure, seconds=seconds) for figure, seconds in zip(toys, (1.0, 2.0), strict=True)
    )
    install(monkeypatch, drawn, table, replace(table, name="unknown", seconds=math.inf))
    report_of(tmp_path)
    record = tmp_path / ".cache" / "drawn-quick" / "result.json"
    told = json.loads(record.read_text(encoding="utf8"))
    told["result"]["seconds"] = 5.0  # what was measured counts, not what was declared
    record.write_text(json.dumps(told), encoding="utf8")
    monkeypatch.setattr(reproduce, "code_fingerprint", lambda *rooms: "other code")
    report_of(tmp_path)
    assert began[:4] == ["unknown", "table", "drawn", "drawn"]


def test_every_figure_declares_what_it_costs():
    assert all(0 < figure.seconds < math.inf for figure in figures.ALL.values())


# ---------------------------------------------------------------------- the page


def test_a_drawing_is_written_with_the_same_bytes_each_time(tmp_path):
    arrays = {"numbers": np.arange(3)}
    files = [tmp_path / "a.svg", tmp_path / "a2.svg"]
    for file in files:
        draw(arrays).savefig(file, metadata={"Date": None})
    assert files[0].read_bytes() != files[1].read_bytes()
    reproduce.write_svg(draw(arrays), files[0])
    kept = files[0].read_bytes()
    reproduce.write_svg(draw(arrays), files[0])
    assert files[0].read_bytes() == kept


def test_every_reference_inside_a_drawing_still_points_to_its_target(tmp_path):
    reproduce.write_svg(draw({"numbers": np.arange(3)}), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf8")
    ids = re.findall(r'\bid="([^"]+)"', text)
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    assert len(set(ids)) == len(ids)
    assert used and {a or b for a, b in used} <= set(ids)


class Outline(HTMLParser):
    """Headings, ids, addresses and unclosed tags of a page."""

    VOID = ("meta", "img", "input", "br", "wbr", "link")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.addresses, self.headings = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.open += [] if tag in self.VOID else [tag]
        self.headings += [tag] if re.fullmatch(r"h\d", tag) else []
        self.ids += [given["id"]] if "id" in given else []
        self.addresses += [given[name] for name in ("src", "href") if name in given]
        assert tag != "img" or given["alt"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_one_file_with_a_sound_outline(toys, tmp_path):
    outline = Outline(page(report_of(tmp_path), tmp_path))
    local = {"report.json", "explorer.html", "drawn.svg", "drawn.npz", "table.npz"}
    anchors = {f"#{name}" for name in outline.ids}
    assert not outline.open
    assert outline.headings == ["h1", "h2", "h3", "h3", "h2", "h2"]
    assert all(a in local | anchors for a in outline.addresses)
    assert all((tmp_path / name).exists() for name in local - {"report.json", "explorer.html"})


def test_the_page_says_everything_once_and_escapes_it(toys, tmp_path):
    report = report_of(tmp_path)
    text = page(report, tmp_path)
    for part in (
        "last &lt;number&gt;",
        "Drawn &amp; shown",
        "No &lt;note&gt; on <code>a_<wbr>b</code> and W<sup>mm</sup>.",
        "Of 2 published numbers, 2 agree.",
    ):
        assert part in text
    assert "attsvm reproduce --only drawn --scale quick" in text
    assert text == page(report, tmp_path)
    assert "Of 2 published numbers" not in page(Report("quick", report.results[:1]), tmp_path)


def test_report_json_is_strict_and_tells_the_verdicts(toys, tmp_path, monkeypatch):
    install(monkeypatch, replace(toys[1], checks=check(float("nan"))))
    write_report(report_of(tmp_path), tmp_path)
    assert "explorer/main.js" in (tmp_path / "explorer.html").read_text(encoding="utf8")
    record = json.loads((tmp_path / "report.json").read_text(encoding="utf8"), parse_constant=pytest.fail)
    assert (record["good"], record["counts"]) == (True, {"differs, not explained": 1})
    assert record["figures"][0]["checks"][0]["reference"] is None


def test_only_published_numbers_count_in_the_headline_and_every_kind_is_counted_apart(
    toys, tmp_path, monkeypatch
):
    assert report_of(tmp_path).sentence == "Of 2 published numbers, 2 agree."
    own = replace(toys[1], name="own", checks=check(3.0, "independent run"))
    install(monkeypatch, toys[0], own)
    report = report_of(tmp_path)
    assert report.sentence == "Of 1 published number, 1 agrees."
    assert "1 of 1 numbers of independent runs" in write_gallery(report, tmp_path, tmp_path).read_text("utf8")
    counted = {"printed": {"agrees": 1}, "independent run": {"agrees": 1}}
    assert report.record()["provenance"] == counted
    text = page(report, tmp_path)
    assert counts_of(text)["independent run"] == [1, 0, 0, 0, 0, 1] and "Published</th>" not in text


def test_a_derived_number_that_differs_is_told_in_the_headline(toys, tmp_path, monkeypatch):
    install(monkeypatch, replace(toys[0], checks=check(9.0, "derived")))
    wanted = "None of these numbers is published. 1 of the numbers that we derived differs."
    assert report_of(tmp_path).sentence == wanted


def test_a_reference_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match=r"provenance is 'published'\. Pass one of: printed, read off"):
        Check("a number", "published", "nobody", 1.0, 1.0, figures.exactly())


def test_the_gallery_shows_each_drawing_and_its_command(toys, tmp_path):
    file = write_gallery(report_of(tmp_path), tmp_path, tmp_path / "docs")
    text = file.read_text(encoding="utf8")
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", text)
    assert (file.parent / picture).read_bytes() == (tmp_path / "drawn.svg").read_bytes()
    assert "attsvm reproduce --only table" in text


@pytest.mark.parametrize(("verdict", "good"), [("holds", True), ("fails", False)])
def test_claims_join_the_page_and_its_verdict(toys, tmp_path, monkeypatch, verdict, good):
    name = next(name for name, claim in claims.items() if not claim.refuted)
    rows = [Row(name, (0,), (verdict,), ("fails",), (), (), 0.1)]
    monkeypatch.setattr(summary, "run_all", lambda executor=None: rows)
    assert summary.stored_claims(tmp_path) == ()
    done = run(tmp_path, "--claims")
    assert (done.exit_code == 0) is good
    assert summary.stored_claims(tmp_path) == tuple(rows)
    assert code(name) in (tmp_path / "report.html").read_text(encoding="utf8")


PHONE = """<title></title><script>
const measure = ({ contentDocument: page, title }) => {
  const { scrollWidth, clientWidth } = page.documentElement;
  const fits = scrollWidth === clientWidth ? "fits" : "too wide";
  const shown = () => page.getElementById("shown").textContent;
  document.title += `[${title}: ${shown()}, ${fits}]`;
  page.querySelector("[name=kind]").value = "plot";
  page.getElementById("filter").dispatchEvent(new Event("input"));
  document.title += `[${title}, plots: ${shown()}]`;
};
</script>
<iframe title="page" src="report.html" style="width: 380px" onload="measure(this)"></iframe>
<iframe title="twin" src="wide.html" style="width: 380px" onload="measure(this)"></iframe>"""


def test_chromium_runs_the_page_and_a_phone_needs_no_sideways_scroll(toys, tmp_path):
    text = write_report(report_of(tmp_path), tmp_path).read_text(encoding="utf8")
    wide = text.replace("</main>", '<p style="width: 2000px">wide</p></main>')
    (tmp_path / "wide.html").write_text(wide, encoding="utf8")
    (tmp_path / "phone.html").write_text(PHONE, encoding="utf8")
    with driven("--allow-file-access-from-files") as alone:
        said = elements(alone, tmp_path / "phone.html")
    assert "[page, plots: 1 of 2]" in said
    assert "[page: 2 of 2, fits]" in said and "[twin: 2 of 2, too wide]" in said


LANDED = """
const [name, done] = arguments;
const rest = new Promise((next) => addEventListener("scrollend", next, { once: true }));
document.querySelector(`nav a[href="#${name}"]`).click();
rest.then(() => setTimeout(() => done(document.getElementById(name).getBoundingClientRect().top), 300));
"""
MOVING = {"name": "prefers-reduced-motion", "value": "no-preference"}
"""The page glides to a link, past pictures that come while it does."""

CLOSE = 60
"""Pixels: a heading comes to rest a line below the edge; a picture that grows moves it by hundreds."""


@pytest.fixture
def look(chrome):
    """Ask the browser for a theme, or for motion, until the test ends."""
    yield lambda feature: chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_link_of_the_contents_lands_at_its_figure(toys, tmp_path, monkeypatch, chrome, look):
    install(monkeypatch, *(replace(toys[0], name=f"drawn{k}") for k in range(9)))
    file = write_report(report_of(tmp_path), tmp_path)
    look(MOVING)
    for name in ("drawn3", "drawn7"):
        chrome.get("about:blank")
        chrome.get(file.as_uri())
        assert 0 <= chrome.execute_async_script(LANDED, name) < CLOSE


COLOURS = """
const look = (element) => getComputedStyle(document.querySelector(element));
return [look("figure").backgroundColor, look("figure svg").fill, look("body").backgroundColor];
"""
PAPERS = {"light": ("rgb(255, 255, 255)", "rgb(0, 0, 0)"), "dark": ("rgb(25, 29, 34)", "rgb(230, 232, 235)")}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_drawing_has_the_paper_and_the_ink_of_its_page(toys, tmp_path, chrome, look, theme):
    look({"name": "prefers-color-scheme", "value": theme})
    chrome.get(write_report(report_of(tmp_path), tmp_path).as_uri())
    paper, ink, page_colour = chrome.execute_script(COLOURS)
    assert (paper, ink) == PAPERS[theme]
    assert (page_colour == "rgb(20, 23, 27)") is (theme == "dark")
