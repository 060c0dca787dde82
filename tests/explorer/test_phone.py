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


def slide(browser, start, by, moves=20):
    """A finger that goes down, moves in many small steps, as real ones do, and lets go."""
    path = [np.add(start, np.multiply(by, k / moves)) for k in range(moves + 1)]
    for kind, points in [("touchStart", path[:1]), *[("touchMove", [x]) for x in path[1:]], ("touchEnd", [])]:
        spots = [{"x": float(x), "y": float(y)} for x, y in points]
        browser.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": spots})
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
