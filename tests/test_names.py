"""What worked in the last version works in this one: names, arguments in their places, members."""

import re
import warnings
from pathlib import Path

import pytest

import attsvm as att
from attsvm import next_token
from tests.public_names import public, read

ROOT = Path(__file__).parents[1]
BEFORE = read((ROOT / "tests" / "names" / "0.1.0.txt").read_text(encoding="utf8"))
CHANGED = {  # part that is gone → what the changelog must say to use instead
    "attsvm.figures.Check(tolerance)": "accuracy",
    "attsvm.figures.Check(expected_to_differ)": "recipe",
    "attsvm.figures.Check.expected_to_differ": "recipe",
}
LOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf8").split("\n## 0.1.0")[0]


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


def test_every_name_of_the_last_version_is_there_or_warned_of(now):
    old = {f"attsvm.next_token.{name}" for name in next_token._RENAMED}
    assert set(lost(BEFORE, now)) == old | set(CHANGED)


def test_a_lost_name_argument_or_place_is_noticed():
    before = {"a": [], "f": ["(x)", "(y)", ".m", ".m(u)"]}
    assert list(lost(before, before)) == []
    assert list(lost(before, {"f": before["f"]})) == ["a"]
    assert list(lost(before, {"a": [], "f": ["(x)", "(y)", ".m"]})) == ["f.m(u)"]
    assert list(lost(before, {"a": [], "f": ["(x)", "(z)", "(y)", ".m", ".m(u)"]})) == ["f takes x, z, y"]
    assert list(lost(before, {"a": [], "f": ["(x)", "(*y)", ".m", ".m(u)"]})) == ["f takes x"]
    assert list(lost({"f": ["(*y)"]}, {"f": ["(x)", "(*z)", "(*y)"]})) == []


@pytest.mark.parametrize("old", next_token._RENAMED)
def test_an_old_name_says_the_new_one_and_works(old):
    with pytest.warns(DeprecationWarning, match=next_token._RENAMED[old]) as caught:
        found = getattr(next_token, old)
    assert found is getattr(next_token, next_token._RENAMED[old])
    assert caught[0].filename == __file__ and old not in dir(next_token)


def test_a_name_of_this_version_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert next_token.attention_program
        att.figures.Check("π", "printed", "a table", 3.14, 3.14159, att.figures.digits(2))
    with pytest.raises(AttributeError, match="no attribute 'attention_programs'"):
        next_token.attention_programs  # noqa: B018


def test_a_check_with_a_bare_tolerance_works_as_in_the_last_version():
    with pytest.warns(DeprecationWarning, match="accuracy"):
        near = att.figures.Check("π", "printed", "a table", 3.14, 3.14159, 0.002, "two decimals")
    with pytest.warns(DeprecationWarning, match="accuracy"):
        far = att.figures.Check("π", "printed", "a table", 3.14, 3.14159, 0.001, "two decimals")
    assert near.agreement == "agrees" and far.agreement == "differs, not explained"


def test_the_changelog_tells_what_to_write_instead():
    new = {**{f"attsvm.next_token.{old}": name for old, name in next_token._RENAMED.items()}, **CHANGED}
    rows = [line for line in LOG.splitlines() if line.startswith("| `")]
    for old, name in new.items():
        word = re.split(r"[.(]", old.strip(")"))[-1]
        assert any(word in row and name in row.split("|")[2] for row in rows), old
