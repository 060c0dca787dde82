"""Links of strangers: what they say wrongly falls back and is told, and the page goes on."""

import base64
import json

from attsvm.explorer import state
from tests.explorer.conftest import SETTLE

TRIANGLE = {"tokens": [[0, 1], [1, 0], [-1, -1]]}
GOOD = {"inputs": [TRIANGLE], "time": 30, "starts": {"points": [[0, 1]]}}
ODD = ("constructor", -1, 1e300, [["x"]], {})
"""Values of kinds and sizes that few fields take."""

FIELDS = ("head", "byHead", "choose", "p", "follow", "loss", "rule", "ruleP", "lr", "joint", "usual", "time")
FIELDS += ("starts", "focus", "run", "recorded", "preset", "trained")
WRONG = {f"{name}={json.dumps(value)}": (name, {name: value}) for name in FIELDS for value in ODD}
WRONG |= {
    f"{name} {json.dumps(value)}": ("starts", {"starts": value})
    for name, value in (
        ("ring", {"ring": 1e9, "radius": 1}),
        ("ring", {"ring": 2.5, "radius": 1}),
        ("ring", {"ring": "64", "radius": 1}),
        ("ring", {"ring": 0, "radius": 1}),
        ("radius", {"ring": 4, "radius": 0}),
        ("points", {"points": [[0, 1, 2]]}),
        ("points", {"points": "ab"}),
        ("points", {"points": [[0, 0]] * 10_000}),
    )
}
WRONG |= {
    f"input {json.dumps(part)}": (name, {"inputs": [TRIANGLE | part]})
    for name, part in (
        ("label", {"label": "1"}),
        ("label", {"label": 0}),
        ("query", {"query": [1, 2, 3]}),
        ("query", {"query": "1"}),
        ("scores", {"scores": [1]}),
        ("scores", {"scores": "abc"}),
        ("chosen", {"chosen": [3]}),
        ("chosen", {"chosen": [0, 0]}),
        ("chosen", {"chosen": 1}),
    )
}
WRONG |= {
    "singular values of a prompt": ("rule", {"rule": "spectral"}),
    "factors and head": ("joint", {"trained": "kq", "joint": True}),
}
FINE = {'preset="constructor"'}
"""A preset may be one of another version."""

NO_PROBLEM = (
    None,
    5,
    "text",
    [],
    {},
    {"inputs": []},
    {"inputs": [None]},
    {"inputs": "ab"},
    {"inputs": [{"tokens": []}]},
    {"inputs": [{"tokens": [[0, "1"]]}]},
    {"inputs": [{"tokens": [[0, 1e300]]}]},
    {"inputs": [{"tokens": [[0, 1]] * 13}]},
    {"inputs": [TRIANGLE] * 9},
)

FAR = {"tokens": [[1e9, 0], [0, -1e9], [1e9, 1e9]]}
WIDE = {"inputs": [TRIANGLE | {"query": [1, 2]}, TRIANGLE | {"query": [0, 0]}], "time": 30}
EXTREMES = (
    GOOD,
    GOOD | {"inputs": [FAR]},
    GOOD | {"inputs": [FAR], "rule": "gd", "lr": 1e6},
    GOOD | {"inputs": [{"tokens": [[1e-300, 0], [0, 1e-300]]}]},
    GOOD | {"inputs": [{"tokens": [[1, 1], [1, 1]]}]},
    GOOD | {"inputs": [{"tokens": [[1, 1]]}] * 8},
    GOOD | {"inputs": [TRIANGLE | {"query": [0]}]},
    GOOD | {"starts": {"points": [[1e9, -1e9]]}, "lr": 1e6, "loss": "exponential"},
    GOOD | {"starts": {"ring": 512, "radius": 1e-6}, "run": 511},
    GOOD | {"p": 1000, "follow": False},
    GOOD | {"p": 1, "follow": False, "joint": True},
    *(GOOD | {"rule": "mirror", "ruleP": p, "lr": lr} for p in (1.01, 100) for lr in (1e-9, 1e6)),
    *(GOOD | {"trained": "kq", "rule": rule, "lr": 1e6} for rule in ("gd", "sign", "steepest", "mirror")),
    GOOD | {"trained": "kq", "inputs": [FAR], "starts": {"points": [[1e9, 0]]}, "usual": True},
    WIDE,
    *(WIDE | {"rule": rule, "joint": True} for rule in ("sign", "coordinate", "mirror", "spectral")),
    *(
        WIDE | {"trained": "kq", "rule": rule, "lr": lr}
        for rule in ("gd", "sign", "schatten", "spectral", "mirror")
        for lr in (1e-9, 1e6)
    ),
    *(
        WIDE | {"trained": "kq", "starts": {"points": [start]}, "usual": True}
        for start in ([1e9, 0, 0, 1e-9], [1e-9, 0, 0, 0], [1e9] * 4)
    ),
    GOOD | {"head": [0, 0], "recorded": [[[0, 1], [1e9, 0]]]},
)

VISIT = f"""
const errors = [], told = [], words = [], settle = async () => {{ {SETTLE} }};
const listen = ({{ message, reason }}) => errors.push(String(message ?? reason));
for (const kind of ["error", "unhandledrejection"]) addEventListener(kind, listen);
await settle();  // the page may still be about to write an address of its own
const say = explorer.say;
explorer.say = (said) => words.push(said) && say.call(explorer, said);  // it fades on the page
for (const link of given[0]) {{
  explorer.say("");
  const there = new Promise((next) => {{
    const seen = ({{ newURL }}) => {{
      if (newURL.endsWith(link)) next(removeEventListener("hashchange", seen));
    }};
    addEventListener("hashchange", seen);
  }});
  location.hash = link;
  await there;
  await settle();
  const [verdict, disc] = ["verdict", "disc"].map((id) => document.getElementById(id));
  const finite = (explorer.now.solution.w ?? []).every(Number.isFinite);
  const sound = finite && !/NaN|undefined|null/.test(verdict.innerText + disc.innerHTML);
  told.push([words.at(-1), sound, errors.splice(0)]);
}}
for (const kind of ["error", "unhandledrejection"]) removeEventListener(kind, listen);
delete explorer.say;
return told;
"""


def link(part):
    """A state as the page writes it into its address."""
    return "#" + base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def visit(browser, parts):
    """What the page says of each link, whether it is sound then, and its errors."""
    return browser.run(VISIT, [link(part) for part in parts])


def test_every_field_of_a_link_is_checked_and_what_is_wrong_is_told(browser):
    told = dict(zip(WRONG, visit(browser, [GOOD | patch for _, patch in WRONG.values()]), strict=True))
    assert {name: rest for name, (_, *rest) in told.items() if rest != [True, []]} == {}
    assert {name for name, (said, *_) in told.items() if f"expected for {WRONG[name][0]}" not in said} == FINE


def test_a_link_may_go_to_the_limits_of_every_field(browser):
    assert [told for told in visit(browser, EXTREMES) if told != ["", True, []]] == []


def test_a_link_without_a_problem_leaves_the_page_as_it_is(browser):
    visit(browser, [GOOD])
    before = browser.run("return explorer.state")
    for said, *rest in visit(browser, NO_PROBLEM):
        assert "holds no problem" in said and rest == [True, []]
    assert browser.run("return explorer.state") == before


def test_a_link_is_opened_though_the_page_writes_its_own_address_meanwhile(browser):
    visit(browser, [GOOD])
    meanwhile = """
    const changed = new Promise((next) => addEventListener("hashchange", next, { once: true }));
    location.hash = given[0];
    history.replaceState(null, "", `#${explorer.address}`);
    await changed;
    return explorer.state.inputs.length;
    """
    assert browser.run(meanwhile, link(GOOD | {"inputs": [TRIANGLE] * 3})) == 3


def test_a_link_with_nothing_to_read_opens_the_first_preset_and_says_so(browser):
    browser.open("#bm9uc2Vuc2U")
    assert browser.run("return explorer.state.preset") == "one-input-local"
    assert "holds no problem" in browser.run("return document.getElementById('said').textContent")


def test_a_place_on_the_page_is_no_link(browser):
    browser.open("#tokens")
    assert browser.run("return document.getElementById('said').textContent") == ""


def test_the_page_has_the_same_limits_as_the_package(browser):
    limits = browser.run(
        "const { INPUTS, TOKENS } = await import('explorer/fields.js'); return [INPUTS, TOKENS]"
    )
    assert limits == [state.INPUTS, state.TOKENS]
