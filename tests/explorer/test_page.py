"""The page in a real browser: hands, keys, addresses, files; and that nothing leaves it."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

import attsvm as att
from attsvm.explorer import page, presets
from tests.commands import run
from tests.explorer.conftest import load

SHOWN = """
const { now: { solution: { w } }, state } = explorer;
return { w, state, words: document.getElementById("verdict").innerText };
"""
IDS = [preset["id"] for preset in presets()]


def drag(browser, selector, by):
    """Press the mouse on an element, move it and let go."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    node = browser.driver.find_element(By.CSS_SELECTOR, selector)
    ActionChains(browser.driver, duration=40).click_and_hold(node).move_by_offset(*by).release().perform()
    browser.settle()


def press(browser, selector, *keys):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.run("document.querySelector(given[0]).focus()", selector)
    browser.driver.switch_to.active_element.send_keys(*[getattr(Keys, key) for key in keys])
    assert browser.driver.find_element(By.CSS_SELECTOR, selector)
    browser.settle()


TOKEN = '[data-input="0"][data-token="{}"] .mark'


def test_a_real_drag_of_a_support_token_turns_the_direction_shown(browser):
    load(browser, "one-input-global")
    before = browser.run(SHOWN)
    drag(browser, TOKEN.format(2), (60, -20))
    after = browser.run(SHOWN)
    assert before["state"]["inputs"][0]["tokens"][2] != after["state"]["inputs"][0]["tokens"][2]
    assert np.abs(np.subtract(before["w"], after["w"])).max() > 0.05
    assert before["words"] != after["words"] and "certified" in after["words"]


PLANE = "return document.getElementById('tokens').getBoundingClientRect().top"


def test_no_caption_moves_the_plane_under_the_hand_that_drags(browser):
    tops = set()
    for name in IDS:
        load(browser, name)
        tops.add(browser.run(PLANE))
        drag(browser, TOKEN.format(0), (30, -20))
        tops.add(browser.run(PLANE))
    assert len(tops) == 1


def test_a_drag_of_the_empty_plane_changes_nothing(browser):
    load(browser, "one-input-global")
    before = browser.run(SHOWN)
    drag(browser, "#tokens .axis", (40, 30))
    assert browser.run(SHOWN) == before


def test_a_click_chooses_a_token_and_a_token_inside_is_explained(browser):
    load(browser, "several-inputs")
    inside = browser.run(
        "explorer.state.inputs[0].tokens[6] = [-0.4, 0.1]; explorer.changed('tokens'); return true"
    )
    assert inside
    browser.settle()
    drag(browser, TOKEN.format(6), (0, 0))
    words = browser.run(SHOWN)["words"]
    assert "no direction" in words and "1g lies inside the triangle of" in words


def test_arrow_keys_move_a_token_and_delete_removes_it(browser):
    load(browser, "one-input-global")
    token = '[data-input="0"][data-token="1"]'
    press(browser, token, "ARROW_UP", "ARROW_RIGHT")
    (x, y) = browser.run("return explorer.state.inputs[0].tokens[1]")
    assert x > 1 and y > 0
    press(browser, token, "DELETE")
    assert len(browser.run("return explorer.state.inputs[0].tokens")) == 2


CLICKS = """
const click = (id) => document.getElementById(id).click(), { state } = explorer;
click("add-input"); click("add-token"); click("by-head"); click("usual"); click("add-start");
document.querySelector(".label-flip").click();
document.querySelector('[data-norm="inf"]').click();
return state;
"""


def test_buttons_add_flip_and_choose_and_the_page_goes_on(browser):
    browser.complaints()
    load(browser, "joint-tight")
    state = browser.run(CLICKS)
    browser.settle()
    assert [len(each["tokens"]) for each in state["inputs"]] == [2, 2, 2, 4]
    assert state["inputs"][0]["label"] == -1 and state["p"] == "inf" and not state["follow"]
    assert (state["byHead"], state["joint"], state["usual"]) == (False, False, True)
    assert len(state["starts"]["points"]) == 2 and state["preset"] is None
    assert browser.complaints() == []


def test_one_start_of_a_weight_is_a_weight(browser):
    load(browser, "two-clouds")
    browser.run("document.getElementById('some').click()")
    browser.settle()
    assert browser.run("return explorer.state.starts.points") == [[0, 0, 0, 0]]


def test_a_selection_of_the_ranking_can_be_chosen(browser):
    load(browser, "one-input-local")
    browser.run("document.querySelectorAll('.rank')[1].click()")
    browser.settle()
    shown = browser.run(SHOWN)
    assert shown["w"] == pytest.approx([1, 0]) and "only some starts" in shown["words"]


def test_an_address_reproduces_the_state_exactly(browser):
    load(browser, "several-inputs", rule="mirror", ruleP=2.5, lr=0.05)
    drag(browser, TOKEN.format(1), (13, 7))
    before = browser.run(
        "explorer.writeAddress(); return [explorer.state, explorer.now.solution.w, location.hash]"
    )
    browser.open(before[2])
    assert browser.run("return [explorer.state, explorer.now.solution.w]") == before[:2]


@pytest.mark.parametrize("name", IDS)
def test_every_preset_loads_trains_and_tells_without_an_error(browser, name):
    browser.complaints()
    load(browser, name)
    state = browser.run(SHOWN)
    assert state["state"]["preset"] == name and state["words"].startswith("margin")
    assert browser.run("return document.getElementById('advice').textContent").count(". ") >= 1
    assert browser.complaints() == []


def test_the_console_is_read(browser):
    browser.run("console.error('a complaint')")
    assert len(browser.complaints()) == 1


def test_no_request_leaves_the_page(browser):
    browser.requests()
    browser.open()
    load(browser, "joint-loose")
    asked = browser.requests()
    assert asked and all(url.startswith(("file:", "blob:", "data:", "about:")) for url in asked)
    browser.run("await fetch('http://127.0.0.1:9/').catch(() => null)")
    assert "Content Security Policy" in " ".join(browser.complaints())  # a request would not even be sent


FARTHEST = """
const boxes = [...document.querySelectorAll("body *:not(svg *):not(.skip)")];
return Math.max(...boxes.map((x) => x.getBoundingClientRect().right), document.documentElement.scrollWidth);
"""


def test_the_page_fits_a_phone(browser):
    try:
        browser.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True},
        )
        for name in ("one-input-local", "joint-loose", "six-inputs", "waiting"):
            load(browser, name)
            assert browser.run(FARTHEST) <= 390
        browser.run(
            "document.body.append(Object.assign(document.createElement('p'), {style: 'width: 900px'}))"
        )
        assert browser.run(FARTHEST) > 390
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.open()


def test_every_control_has_a_name_for_a_screen_reader(browser):
    nameless = """
    const label = (x) => x.labels?.[0]?.textContent.trim();
    const name = (x) => x.getAttribute("aria-label") || x.textContent.trim() || label(x);
    const controls = "button, input, select, [role=button], [role=slider], [role=img], [role=group]";
    return [...document.querySelectorAll(controls)].filter((x) => !name(x)).map((x) => x.outerHTML);
    """
    load(browser, "several-inputs")
    assert browser.run(nameless) == []
    browser.run("document.body.append(document.createElement('button'))")
    assert browser.run(nameless) == ["<button></button>"]
    browser.open()


# ---------------------------------------------------------------------- words

ADVICE = "return document.getElementById('advice').textContent"


def test_the_caption_is_that_of_the_problem_shown(browser):
    load(browser, "one-input-local")
    assert browser.run(ADVICE).startswith("Two selections are locally optimal")
    browser.run("explorer.state.inputs[0].tokens[1] = [0.3, 0.4]; explorer.changed('tokens')")
    browser.settle()
    assert browser.run("return explorer.now.local.length") == 1
    assert "Your own problem: 1 input of 3 tokens. One selection is locally optimal" in browser.run(ADVICE)
    browser.run("explorer.state.inputs[0].tokens[1] = [1, 0]; explorer.changed('tokens')")
    browser.settle()
    assert "Two selections are locally optimal, and the starts divide" in browser.run(ADVICE)


SPOKEN = """
const said = () => document.getElementById("spoken").textContent;
document.getElementById("spoken").textContent = "";
explorer.changed("starts");
explorer.play(true);
explorer.goal = 2000;
let early = null;
const began = performance.now();
for (let k = 0; k < 1500 && !said(); k++) {
  await pause();
  if (performance.now() > began + 550) early ??= explorer.basins; // half a second after the change
}
return [said(), document.getElementById("basins").textContent, early];
"""


def test_a_screen_reader_is_told_what_the_page_shows(browser):
    load(browser, "one-input-local", time=2000)
    said, shown, early = browser.run(SPOKEN)
    assert shown == "Of 64 starts: 45 to A, 19 to B." and said.endswith(shown)
    assert early != shown  # what the page showed on the way


CUT = """
const view = document.getElementById(given[0]).getBoundingClientRect();
const cut = (node) => {
  const { left, right, top, bottom, width } = node.getBoundingClientRect();
  const outside = left < view.left || right > view.right || top < view.top - 1 || bottom > view.bottom + 3;
  return width > 0 && outside;
};
const labels = [...document.querySelectorAll(`#${given[0]} text`)].filter((node) => node.textContent);
return labels.filter(cut).map((node) => node.textContent);
"""
CORNERS = [(-0.99, 0.98), (0.99, 0.98), (0.99, -0.98), (-0.99, -0.98)]


@pytest.mark.parametrize("corner", CORNERS)
def test_no_label_is_cut_at_the_edge(browser, corner):
    load(browser, "one-input-local")
    browser.run(
        "const { middle, reach } = explorer.tokensView;"
        "explorer.state.inputs[0].tokens[0] = given[0].map((x, i) => middle[i] + x * reach);"
        "explorer.changed('tokens')",
        corner,
    )
    browser.settle()
    assert browser.run(CUT, "tokens") == [] and browser.run(CUT, "disc") == []
    browser.run(
        "const label = document.querySelector('#tokens .label');"
        "label.setAttribute('x', 475); label.setAttribute('text-anchor', 'start')"
    )
    assert browser.run(CUT, "tokens") == ["1a"]
    browser.open()


def test_charts_name_their_run_and_their_axis(browser):
    watched = "return document.getElementById('watched').textContent"
    load(browser, "one-input-local", time=2000)
    assert browser.run(watched) == (
        "The charts show run 1 of 64, the thick line of the disc, at A. Its tokens: 1a."
    )
    load(browser, "one-input-local", time=2000, starts={"points": [[1, -1]]})
    assert browser.run(watched) == "The charts show the only run, at B. Its tokens: 1b."
    names = browser.run(
        "return [...document.querySelectorAll('#chart-turn .axis-name')].map((x) => x.textContent)"
    )
    assert "step 1" in names and "10⁵" in names


TRAINED = "return document.getElementById('verdict').innerText.split('training')[1]"
CHOOSE = """
const { choose } = await import("explorer/state.js");
choose(explorer.state, explorer.fresh().selected, 0, given[0], false);
explorer.changed("selection");
"""


def test_the_angle_to_its_program_is_not_told_of_a_selection_that_the_run_did_not_choose(browser):
    load(browser, "one-input-local", time=2000, starts={"points": [[1, -1]]})  # this run ends at 1b
    browser.run(CHOOSE, 1)
    browser.settle()
    assert "° from its program" in browser.run(TRAINED)
    browser.run(CHOOSE, 0)
    browser.settle()
    assert "attends to 1b" in browser.run(TRAINED) and "from their program" in browser.run(TRAINED)


def test_charts_and_labels_speak_of_what_is_trained_and_count_inputs(browser):
    told = "const { $ } = await import('explorer/dom.js');"
    told += "return [$('length-of').textContent, $('tokens').ariaLabel]"
    load(browser, "one-input-local")
    length, label = browser.run(told)
    assert length == "‖p‖" and label.startswith("Tokens of 1 input.")
    browser.run("explorer.loadPreset('waiting', {time: 30}, false)")
    browser.settle()
    length, label = browser.run(told)
    assert length == "‖W‖" and not label.startswith("Tokens of 1 inputs")


# ---------------------------------------------------------------------- frames

HELD = """
const words = () => document.getElementById("verdict").innerText, told = [words()];
explorer.dragging = true;
explorer.state.inputs[0].tokens[2] = [-1.5, 0.7];
explorer.changed("tokens");
explorer.fresh();
for (const whole of [false, true]) {
  explorer.frames = 1;
  explorer.draw(whole);
  told.push(words());
}
return told;
"""


def test_numbers_wait_for_their_turn_while_a_hand_drags(browser):
    load(browser, "one-input-global")
    before, between, after = browser.run(HELD)
    assert before == between != after


def test_a_hand_that_rests_without_letting_go_reads_true_numbers(browser):
    load(browser, "one-input-global")
    browser.run(HELD.replace("[false, true]", "[false]"))
    browser.settle()
    held = browser.run(SHOWN)["words"]
    browser.run("explorer.dragging = false; explorer.draw(true)")
    assert held == browser.run(SHOWN)["words"]


FILL = """
const { fill, svg } = await import("explorer/dom.js"), group = svg("g");
fill(group, [["path", { class: "old", d: "M0,0" }], ["text", { x: 1 }, "a<tspan>b</tspan>"]]);
const [path, text] = group.children;
fill(group, [["path", { class: "old", d: "M1,1" }], ["circle", { r: 2 }]]);
const kept = [path === group.firstChild, text.isConnected, group.innerHTML];
fill(group, [["path", { d: "M1,1" }]]);
return [...kept, group.innerHTML];
"""


def test_a_shape_stays_while_its_kind_does_and_nothing_old_remains(browser):
    stays, lost, second, last = browser.run(FILL)
    assert stays and not lost
    assert second == '<path class="old" d="M1,1"></path><circle r="2"></circle>'
    assert last == '<path d="M1,1"></path>'


BOX = """
const { boxOf } = await import("explorer/dom.js"), node = document.getElementById("tokens");
const before = boxOf(node).top;
window.scrollTo(0, 60);
for (let k = 0; k < 100 && boxOf(node).top === before; k++) await pause();
return [before, boxOf(node).top, node.getBoundingClientRect().top];
"""


def test_a_plane_is_found_again_after_the_page_scrolls(browser):
    before, after, true = browser.run(BOX)
    browser.run("window.scrollTo(0, 0)")
    assert after == true < before


# ---------------------------------------------------------------------- files


@pytest.fixture
def saved(browser, tmp_path):
    """What the page saves of a preset that was changed by hand."""

    def save(name):
        load(browser, name)
        text = browser.run("const {json} = await import('explorer/files.js'); return json(explorer)")
        file = tmp_path / f"{name}.json"
        file.write_text(text, encoding="utf8")
        return file, browser.run("return explorer.now.solution.margin")

    return save


@pytest.mark.parametrize("name", ["several-inputs", "two-fans", "joint-loose"])
def test_tokens_and_solve_read_what_the_page_saves(saved, name):
    file, margin = saved(name)
    assert att.Tokens.load(file).d == 2
    answer = run("solve", file, "--json")
    assert answer.exit_code == 0
    assert json.loads(answer.stdout)["margin"] == pytest.approx(margin, rel=1e-8)


def test_explore_opens_what_the_page_saved(saved, tmp_path):
    file, _ = saved("joint-loose")
    out = tmp_path / "again.html"
    assert run("explore", file, "--out", out, "--no-open").exit_code == 0
    start = json.loads(out.read_text(encoding="utf8").split('id="data">')[1].split("</script>")[0])["start"]
    assert (
        start["joint"]
        and start["inputs"] == json.loads(file.read_text(encoding="utf8"))["explorer"]["inputs"]
    )


def test_pictures_are_saved_as_drawings_and_as_pixels(browser):
    load(browser, "one-input-local")
    drawing = browser.run("const {drawing} = await import('explorer/files.js'); return drawing(explorer)")
    assert drawing.count("<path") > 64 and "aria-label" not in drawing
    assert "var(" not in drawing and "class=" not in drawing and "<style" not in drawing
    shapes = [
        node
        for node in ElementTree.fromstring(drawing).iter()
        if node.tag.endswith(("path", "circle", "text"))
    ]
    assert all("fill" in node.attrib for node in shapes)  # what has none is black in other programs
    assert len({node.attrib.get("stroke") for node in shapes}) > 4
    size = browser.run(
        "const {pixels} = await import('explorer/files.js'), found = await pixels(explorer);"
        "return [found.type, found.size]"
    )
    assert size[0] == "image/png" and size[1] > 20_000


def test_a_problem_of_the_notebook_opens_in_an_iframe(browser, tmp_path):
    tokens, v = att.datasets.two_scores(3.0)
    shown = att.explore(tokens, v, rule="sign")
    host = tmp_path / "notebook.html"
    host.write_text(f"<!DOCTYPE html><title>notebook</title>{shown._repr_html_()}", encoding="utf8")
    browser.driver.get(host.as_uri())
    browser.driver.switch_to.frame(0)
    try:
        assert browser.run("return [explorer.state.inputs[0].scores, explorer.state.rule]") == [
            [0, 3],
            "sign",
        ]
    finally:
        browser.driver.switch_to.default_content()
        browser.open()


def test_the_page_is_small():
    assert len(page().encode()) < 300_000
