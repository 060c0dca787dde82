"""What worked in the last version works in this one: names, arguments in their places, members."""

import re
from pathlib import Path

import pytest

import attsvm as att
from tests.public_names import public, read

ROOT = Path(__file__).parents[1]
BEFORE = read((ROOT / "tests" / "names" / "0.3.0.txt").read_text(encoding="utf8"))


@pytest.fixture(scope="module")
def now():
    return public()


def places(parts):
    """Arguments that may be given without their names, in order: of the thing, and of its members."""
    found = {}
    for what, name in re.findall(r"(?<!\S)([.\w]*)\((\w+)\)", " ".join(parts)):
        found.setdefault(what, []).append(name)
    return found


def lost(before, now):
    """Names, arguments and members that are gone, and arguments that have another place."""
    for name, parts in before.items():
        if name not in now:
            yield name
            continue
        named = {part.replace("*", "") for part in now[name]}
        gone = [name + part for part in parts if part.replace("*", "") not in named]
        yield from gone
        here = places(now[name])
        for what, order in places(parts).items():
            if not gone and here.get(what, [])[: len(order)] != order:
                yield f"{name}{what} takes {', '.join(here.get(what, []))}"


def test_every_name_of_the_last_version_is_there(now):
    assert list(lost(BEFORE, now)) == []


def test_a_lost_name_argument_or_place_is_noticed():
    before = {"a": [], "f": ["(x)", "(y)", ".m", ".m(u)"]}
    assert list(lost(before, before)) == []
    assert list(lost(before, {"f": before["f"]})) == ["a"]
    assert list(lost(before, {"a": [], "f": ["(x)", "(y)", ".m"]})) == ["f.m(u)"]
    assert list(lost(before, {"a": [], "f": ["(x)", "(z)", "(y)", ".m", ".m(u)"]})) == ["f takes x, z, y"]
    assert list(lost(before, {"a": [], "f": ["(x)", "(*y)", ".m", ".m(u)"]})) == ["f takes x"]
    assert list(lost({"f": ["(*y)"]}, {"f": ["(x)", "(*z)", "(*y)"]})) == []


def test_a_name_that_no_version_has_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'attention_programs'"):
        att.next_token.attention_programs  # noqa: B018
