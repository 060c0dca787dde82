"""The page on a phone: fingers that drag, fingers that scroll, and a tour that covers nothing."""

import numpy as np
import pytest

from tests.explorer.conftest import load

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


@pytest.fixture(scope="module")
def phone(browser):
    """The browser as a telephone that is held upright; tests load what they look at."""
    tell = browser.driver.execute_cdp_cmd
    tell("Emulation.setDeviceMetricsOverride", PHONE)
    tell("Emulation.setTouchEmulationEnabled", {"enabled": True})
    browser.open()
    yield browser
    tell("Emulation.setTouchEmulationEnabled", {"enabled": False})
    tell("Emulation.clearDeviceMetricsOverride", {})
    browser.open()


def touch(browser, kind, places):
    spots = [{"x": float(x), "y": float(y)} for x, y in places]
    browser.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": spots})


def slide(browser, start, by, moves=20):
    """A finger that goes down, moves in many small steps, as real ones do, and lets go."""
    path = [np.add(start, np.multiply(by, k / moves)) for k in range(moves + 1)]
    for kind, points in [("touchStart", path[:1]), *[("touchMove", [x]) for x in path[1:]], ("touchEnd", [])]:
        touch(browser, kind, points)
    browser.settle()


MIDDLE = """
// A page that a finger has thrown scrolls on: where a node is can be said when it rests.
for (let before = NaN, k = 0; before !== scrollY && k < 100; k++) {
  before = scrollY;
  for (let wait = 0; wait < 5; wait++) await pause();
}
const node = document.querySelector(given[0]);
node.closest("svg").scrollIntoView({ block: "center", behavior: "instant" });
const { left, top, width, height } = node.getBoundingClientRect();
return [left + width / 2, top + height / 2];
"""

HANDLES = {
    "token": (
        "one-input-global",
        '[data-input="0"][data-token="2"] .touch',
        "tokensView",
        "inputs[0].tokens[2]",
    ),
    "head": ("six-inputs", ".head .touch", "tokensView", "head"),
    "start": ("two-scores-linear", '[data-start="0"] .touch', "discView", "starts.points[0]"),
}
BY = (30, 200)
"""Pixels: a page that scrolls takes a finger away after about ten."""
NEAR = 0.02
"""Of a place: it is written with a few digits, and the finger comes down half a pixel beside the middle."""


@pytest.mark.parametrize("what", HANDLES)
def test_what_a_finger_drags_ends_where_the_finger_does(phone, what):
    preset, handle, view, place = HANDLES[what]
    load(phone, preset)
    start = phone.run(MIDDLE, handle)
    x, y = np.add(start, BY).tolist()
    wanted = phone.run(f"return explorer.{view}.world({{ clientX: {x}, clientY: {y} }})")
    slide(phone, start, BY)
    assert phone.run(f"return explorer.state.{place}") == pytest.approx(wanted, abs=NEAR)


IN_VIEW = """
const inside = (node) => {
  const { top, bottom, height } = node.getBoundingClientRect();
  return height > 0 && top >= 0 && bottom <= innerHeight;
};
return [...document.querySelectorAll(".disc, #verdict")].map(inside);
"""


@pytest.mark.parametrize("position", ["", "static"])
def test_disc_and_verdict_stay_in_view_while_a_token_is_dragged(phone, position):
    load(phone, "one-input-global")
    style = (
        f"for (const node of document.querySelectorAll('.disc, #verdict')) node.style.position = {position!r}"
    )
    phone.run(style)
    start = phone.run(MIDDLE, HANDLES["token"][1])
    phone.run("window.scrollBy(0, document.getElementById('tokens').getBoundingClientRect().top - 240)")
    start = phone.run(
        "const { left, top, width, height } = document.querySelector(given[0])"
        ".getBoundingClientRect(); return [left + width / 2, top + height / 2]",
        HANDLES["token"][1],
    )
    touch(phone, "touchStart", [start])
    touch(phone, "touchMove", [np.add(start, (20, 20))])
    during = phone.run(IN_VIEW)
    touch(phone, "touchEnd", [])
    assert during == ([True, True] if not position else [False, False])
    phone.run("for (const node of document.querySelectorAll('.disc, #verdict')) node.style.position = ''")


SMALL_TARGETS = """
const size = (node) => { const { width, height } = node.getBoundingClientRect(); return [width, height]; };
const kinds = "button, select, summary, input:not([type=checkbox]), label.check, .touch";
return [...document.querySelectorAll(kinds)].filter((node) => node.checkVisibility())
  .map((node) => [node.id || node.getAttribute("class") || node.textContent, ...size(node)])
  .filter(([, width, height]) => width > 0 && Math.min(width, height) < given[0]);
"""
FINGER = 39.9
"""Pixels: forty, less the rounding of a radius that is written with one digit."""


@pytest.mark.parametrize("name", ["one-input-local", "several-inputs", "waiting", "two-scores-linear"])
def test_every_target_has_the_size_of_a_finger(phone, name):
    load(phone, name)
    assert phone.run(SMALL_TARGETS, FINGER) == []
    assert len(phone.run(SMALL_TARGETS, 60)) > 5


def test_of_close_tokens_a_finger_takes_the_nearest(phone):
    load(phone, "one-input-global")
    phone.run(
        "explorer.state.inputs[0].tokens[1] = explorer.state.inputs[0].tokens[2].map((x) => x + 0.06);"
        "explorer.changed('tokens')"
    )
    phone.settle()
    for token in (1, 2):
        slide(phone, phone.run(MIDDLE, f'[data-token="{token}"] .ring'), (0, 0), moves=1)
        assert phone.run("return explorer.token") == token


def test_the_tour_speaks_of_fingers_and_the_disc_is_in_view_at_every_step(phone):
    phone.open()
    phone.run(TOUR)
    said = phone.run("return document.getElementById('tour-text').textContent")
    assert "Drag a token with your finger" in said and "key" not in said
    for _ in range(6):
        phone.run(SHORT)
        phone.settle()
        phone.run(MIDDLE.split("const node")[0])
        assert phone.run(IN_VIEW)[0]
        phone.run(NEXT)
    phone.open()


def test_a_finger_beside_the_tokens_scrolls_the_page(phone):
    load(phone, "one-input-global")
    phone.run("window.scrollTo(0, 0)")
    slide(phone, phone.run(MIDDLE, "#tokens .axis"), (0, -200))
    assert phone.run("return window.scrollY") > 100


def test_a_tap_chooses_a_token(phone):
    load(phone, "one-input-local")
    slide(phone, phone.run(MIDDLE, '[data-input="0"][data-token="1"] .touch'), (0, 0), moves=1)
    assert phone.run("return explorer.now.selected") == [[1]]


OVERLAP = """
const card = document.getElementById("tour-card").getBoundingClientRect();
const parts = [...document.querySelectorAll(".toured > :not(.tour)")];
const places = parts.map((node) => node.getBoundingClientRect());
const shared = ({ left, right, top, bottom }) =>
  Math.max(0, Math.min(right, card.right) - Math.max(left, card.left)) *
  Math.max(0, Math.min(bottom, card.bottom) - Math.max(top, card.top));
const seen = card.top >= 0 && card.bottom <= innerHeight && places[0].top < innerHeight;
return { covered: Math.max(...places.map(shared)), seen };
"""
TOUR = "document.getElementById('tour').click()"
NEXT = "document.getElementById('tour-next').click()"
SHORT = "explorer.play(false); explorer.state.time = 30; explorer.redraw()"
"""What is drawn takes the same place after a short training, which nobody has to wait for."""


def assert_the_tour_covers_nothing(browser):
    browser.open()
    browser.run(TOUR)
    for _ in range(6):
        browser.run(SHORT)
        browser.settle()
        assert browser.run(OVERLAP) == {"covered": 0, "seen": True}
        browser.run(NEXT)
    browser.run(
        f"{TOUR}; document.getElementById('tour-card').style = 'position: fixed; inset: 0; width: 100%'"
    )
    assert browser.run(OVERLAP)["covered"] > 0
    browser.open()


def test_the_tour_is_in_sight_and_covers_nothing_of_what_it_explains(phone):
    assert_the_tour_covers_nothing(phone)
