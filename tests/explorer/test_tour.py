"""The tour, and what it leaves of a problem that somebody made."""

import pytest

from tests.explorer.conftest import load
from tests.explorer.test_phone import NEXT, TOUR, assert_the_tour_covers_nothing

SHOWN = "return document.getElementById('tour-card').hidden"
CHOOSE = """
const list = document.getElementById("preset");
list.value = given[0];
list.dispatchEvent(new Event("change"));
"""


@pytest.fixture
def own(browser):
    """A problem that a visitor made, and its state."""
    browser.open()
    load(browser, "one-input-global")
    browser.run("explorer.state.inputs[0].tokens[1] = [0.3, 0.4]; explorer.changed('tokens')")
    browser.settle()
    return browser.run("return explorer.state")


def test_the_tour_has_seven_steps_and_no_errors(browser):
    browser.complaints()
    browser.run(TOUR)
    titles = [browser.run("return document.getElementById('tour-title').textContent")]
    for _ in range(6):
        browser.run(NEXT)
        titles.append(browser.run("return document.getElementById('tour-title').textContent"))
    assert len(set(titles)) == 7
    browser.run(NEXT)
    assert browser.run(SHOWN)
    assert browser.complaints() == []


def test_on_a_desk_too_the_tour_is_in_sight_and_covers_nothing_of_what_it_explains(browser):
    assert_the_tour_covers_nothing(browser)


@pytest.mark.parametrize("end", ["tour-end", "Done"])
def test_the_tour_gives_back_the_problem_that_it_found(browser, own, end):
    browser.run(TOUR)
    assert browser.run("return explorer.state") != own
    if end == "Done":
        for _ in range(7):
            browser.run(NEXT)
    else:
        browser.run(f"document.getElementById('{end}').click()")
    assert browser.run(SHOWN)
    assert browser.run("return explorer.state") == own


def test_a_page_that_is_loaded_again_during_a_tour_shows_the_own_problem(browser, own):
    browser.run(f"explorer.writeAddress(); {TOUR}; explorer.settled()")
    browser.open(browser.run("return location.hash"))
    assert browser.run("return explorer.state.inputs") == own["inputs"]


def test_a_preset_that_is_chosen_ends_the_tour_and_the_own_problem_stays_in_the_list(browser, own):
    browser.run(TOUR)
    browser.run(
        "explorer.state.inputs[0].tokens[1] = [9, 9]; explorer.changed('tokens')"
    )  # of the tour's own
    browser.run(CHOOSE, "six-inputs")
    assert browser.run(SHOWN)
    assert browser.run("return explorer.state.preset") == "six-inputs"
    browser.run(CHOOSE, "")
    assert browser.run("return explorer.state.inputs") == own["inputs"]


def test_without_a_problem_of_their_own_nobody_can_choose_it(browser):
    browser.open()
    assert browser.run("return document.getElementById('own').disabled")
