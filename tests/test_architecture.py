"""The layers of the house, read from the imports: they point down only."""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from inspect import signature
from pathlib import Path

import pytest

import attsvm
import attsvm_lab

pytestmark = pytest.mark.quick

ROOT = Path(attsvm.__file__).parent
LABORATORY = Path(attsvm_lab.__file__).parent

CONTRIBUTING = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf8")
DRAWING = re.findall(r"^ (\d)   (.*)$", CONTRIBUTING, re.MULTILINE)
LAYERS = {
    part: int(layer)
    for layer, parts in DRAWING
    if not parts.startswith("attsvm_lab")
    for part in re.findall(r"(\w+)/", parts)
}
"""The layer of every package of the library, as CONTRIBUTING draws it."""
LABORATORY_PARTS = {
    part
    for _, parts in DRAWING
    if parts.startswith("attsvm_lab")
    for part in re.findall(r"(\w+)(?:/|\.py)", parts)
}
HOMES = {
    "numba": {"numbers"},
    "jax": {"training", "jax"},
    "optax": {"training"},
    "matplotlib": {"plotting"},
    "torch": {"torch", "heads"},
    "triton": {"numbers", "torch"},
    "transformers": {"heads", "torch"},
    "sklearn": {"probe"},
    "dask": set(),
    "distributed": set(),
    "pyarrow": set(),
    "pandas": set(),  # data frames of users are recognised by their methods
    "typer": {"cli"},
}
"""The packages of the library that may import a heavy library."""
HEAVY = {*HOMES, "scipy", "rich"}


def part_of(path):
    """The layer's name: the first component below the package."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def import_nodes(source, run_only=False):
    """Every import statement anywhere in the source, lazy ones included; or only those that run.

    One door upwards: a result's `plot` method may ask plotting/ to draw it.
    """
    nodes = every_node(source)
    doors = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == "plot"]
    if run_only:  # what only a type checker reads does not
        doors += [n for n in nodes if isinstance(n, ast.If) and dotted(n.test).endswith("TYPE_CHECKING")]
    excused = {id(n) for door in doors for n in ast.walk(door)}
    return [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) and id(n) not in excused]


@cache
def every_node(source):
    return list(ast.walk(ast.parse(source)))


def dotted(node):
    """The name `a.b.c` of a node, empty where it is none."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imports(source):
    """Every module that the source imports, and every name that may be one."""
    for node in import_nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


TOP = max(LAYERS.values())
"""The layer of the files at the root of the library, which may import all of it."""


def violations(part, source):
    """What an import of this source breaks, in words."""
    for node in every_node(source):  # a module may also be imported by its name in a string
        if isinstance(node, ast.Constant) and str(node.value).split(".")[0] == "attsvm_lab":
            yield f"the library names a module of the laboratory: {part} has {node.value!r}"
    for name in imports(source):
        top, *inner = name.split(".")
        if top == "attsvm_lab":
            yield f"the library imports the laboratory: {part} imports {name}"
        if top == "attsvm" and inner and inner[0] in LAYERS and inner[0] != part:
            if LAYERS[inner[0]] > LAYERS.get(part, TOP):
                yield f"{part} imports upwards: {name}"
            if {part, inner[0]} == {"program", "training"}:
                yield f"program and training meet: {part} imports {name}"
        if top in HOMES and part not in HOMES[top]:
            yield f"{top} does not live in {part}"


FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)


def test_no_module_lies_at_the_root_of_the_library():
    assert {path.name for path in ROOT.glob("*.*")} == {"__init__.py", "__main__.py", "py.typed"}


def test_the_drawing_shows_every_package_and_no_other():
    assert set(LAYERS) == {part_of(path) for path in FILES}
    names = {path.relative_to(LABORATORY).parts[0] for path in LABORATORY.rglob("*.py")}
    assert {name.removesuffix(".py") for name in names} - {"__init__"} == LABORATORY_PARTS


def test_imports_point_down():
    files = {*ROOT.rglob("*.py")}
    broken = {str(path): list(violations(part_of(path), path.read_text(encoding="utf8"))) for path in files}
    assert not {path: words for path, words in broken.items() if words}


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("norms", "from attsvm.data.selection import scores"),
        ("data", "import attsvm.program.max_margin"),
        ("program", "def f():\n    from attsvm.training import train"),
        ("training", "from attsvm import program"),
        ("data", "import numba"),
        ("comparison", "from matplotlib import pyplot"),
        ("probe", "import pandas"),
        ("probe", "import torch"),
        ("cli", "from attsvm_lab.sweeps import sweep"),
        ("plotting", "import attsvm_lab"),
        ("__init__", "from attsvm_lab import claims"),
        ("cli", "import_module('attsvm_lab.claims')"),
    ],
)
def test_a_wrong_import_is_reported(part, source):
    assert list(violations(part, source))


ROOMS = ["data", "fitting"]
"""Of the probe, from the ground up; the estimators and what their methods call stand above them."""


def probe_floor(module):
    """The floor of a module of the probe, None where it is none."""
    top, part, room, *_ = [*module.split("."), "", ""]
    return None if (top, part) != ("attsvm", "probe") else [*ROOMS, room].index(room)


def reaches_up(module, source):
    """Imports of a room of the probe that stand above it."""
    floor = probe_floor(module)
    return [name for name in imports(source) if (probe_floor(name) or 0) > floor]


def test_rooms_of_the_probe_import_from_those_below():
    for path in sorted((ROOT / "probe").rglob("*.py")):
        assert not reaches_up(module_of(path), path.read_text(encoding="utf8")), path.name


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("attsvm.probe.data.store", "from attsvm.probe.fitting.objective import Weights"),
        ("attsvm.probe.fitting.objective", "def f():\n    from attsvm.probe import saved"),
        ("attsvm.probe.fitting.features", "from attsvm.probe.attention_probe import AttentionProbe"),
    ],
)
def test_a_room_that_reaches_up_is_seen(module, source):
    assert reaches_up(module, source)
    assert not reaches_up("attsvm.probe.suite", source)


# ---------------------------------------------------------------------- the laboratory


TOOLS = (
    "attsvm._support",
    "attsvm.comparison.evidence",
    "attsvm.comparison.kkt",
    "attsvm.comparison.verdict",
    "attsvm.plotting",
    "attsvm.numbers.atomic_write",
    "attsvm.numbers.files",
    "attsvm.numbers.threads",
    "attsvm.training.compilation",
    "attsvm.cli.settings",
    "attsvm.norms.names",
    "attsvm.explorer.page",
)
"""Modules that the laboratory uses beside public names: pages, files, workers, options in words, drawing."""
OF_COMMANDS = ("attsvm.cli.app", "attsvm.cli.files")
"""What a command that joins `attsvm` uses besides."""
OF_PROGRAMS = (
    "attsvm.data",
    "attsvm.next_token",
    "attsvm.norms",
    "attsvm.numbers",
    "attsvm.program",
    "attsvm.training",
)
"""What a program of the laboratory is built of: parts of the engines."""
OF_MECHANISMS = ("attsvm.training",)
"""What a mechanism of attention is built of: the formulas of softmax."""
OF_DATASETS = ("attsvm.data.tokens", "attsvm.datasets.random", "attsvm.next_token")
"""What data of the laboratory are drawn with."""
TOOLS_OF_A_ROOM = {
    "attention_kinds": OF_MECHANISMS,
    "cli": OF_COMMANDS,
    "datasets": OF_DATASETS,
    "programs": OF_PROGRAMS,
}
TYPES = {"attsvm.numbers", "attsvm.numbers.Float", "attsvm.numbers.Bool"}
PUBLIC = {
    "att": dir(attsvm),
    "att.datasets": [*attsvm.datasets.__all__, "published"],
    "att.next_token": attsvm.next_token.__all__,
}


def reaches_inside(source, allowed=TOOLS):
    """Imports of the library's inner modules, and attributes of it that are not public."""
    for name in imports(source):
        public = name.removeprefix("attsvm.") in PUBLIC["att"]
        if name.startswith("attsvm.") and not (name.startswith(allowed) or name in TYPES or public):
            yield f"imports {name}"
    for node in every_node(source):
        owner = dotted(node.value) if isinstance(node, ast.Attribute) else ""
        if owner in PUBLIC and node.attr not in PUBLIC[owner]:
            yield f"{owner}.{node.attr} is not public"


def test_the_laboratory_uses_public_names_and_tools_only():
    broken = {}
    for path in sorted(LABORATORY.rglob("*.py")):
        room = path.stem if path.parent == LABORATORY else path.parent.name
        allowed = (*TOOLS, *TOOLS_OF_A_ROOM.get(room, ()))
        broken[str(path)] = list(reaches_inside(path.read_text(encoding="utf8"), allowed))
    assert not {path: words for path, words in broken.items() if words}


@pytest.mark.parametrize(
    "source",
    [
        "from attsvm.training.train import train",
        "from attsvm import training",
        "from attsvm.numbers import linear",
        "def f():\n    import attsvm.comparison.theory",
        "import attsvm as att\natt.program.rows",
        "import attsvm as att\natt.datasets.draw_runs(f, 0)",
        "import attsvm as att\ndef f(x: att.Constraints): ...",
    ],
)
def test_a_reach_into_the_library_is_reported(source):
    assert list(reaches_inside(source))
    assert not list(reaches_inside("import attsvm as att\natt.datasets.sphere(2, 3, 4)\natt.train"))


def classes(source):
    return [node.name for node in every_node(source) if isinstance(node, ast.ClassDef)]


def test_the_door_of_a_folder_only_exports():
    assert classes("class Estimator: ...")
    assert not [p for p in ROOT.rglob("__init__.py") if classes(p.read_text(encoding="utf8"))]


# ---------------------------------------------------------------------- circles


def module_of(path):
    parts = [*path.relative_to(ROOT.parent).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source, modules):
    """The modules among `modules` that the source imports when it runs."""
    for node in import_nodes(source, run_only=True):
        for alias in node.names:
            if isinstance(node, ast.Import):
                yield alias.name
            else:  # `from a import b`: the module a.b where there is one, else a
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module


def circles(sources):
    """The sets of modules that import each other, through others too, at any level of a file.

    sources: the text of every module by its name.
    """
    graph = {name: set(imported(text, sources)) & set(sources) - {name} for name, text in sources.items()}
    reached = {name: everything_from(name, graph) for name in graph}
    return {frozenset(m for m in reached[n] if n in reached[m]) for n in graph if n in reached[n]}


def everything_from(name, graph):
    seen, ahead = set(), [name]
    while ahead:
        new = graph[ahead.pop()] - seen
        seen |= new
        ahead += new
    return seen


def test_no_module_imports_itself_through_others():
    files = [*ROOT.rglob("*.py"), *LABORATORY.rglob("*.py")]
    found = circles({module_of(path): path.read_text(encoding="utf8") for path in files})
    assert not found, f"circles: {[sorted(circle) for circle in found]}"


@pytest.mark.parametrize(
    "back",
    [
        "from a.page import page",
        "def write():\n    from a.page import page",
        "from a import page",
        "import a.page",
    ],
)
def test_a_circle_inside_a_folder_is_seen(back):
    sources = {
        "a": "from a.page import page",
        "a.page": "from a.middle import Row",
        "a.middle": "import a.summary",
    }
    assert circles(sources | {"a.summary": back}) == {frozenset({"a.page", "a.middle", "a.summary"})}
    assert circles(sources | {"a.summary": "import json"}) == set()


def test_what_only_a_type_checker_reads_is_no_circle():
    typed = "if TYPE_CHECKING:\n    from a.page import Page"
    assert circles({"a.page": "from a.summary import Report", "a.summary": typed}) == set()


# ---------------------------------------------------------------------- program: one of each


def calls(source):
    """The names of what the source calls: `a.b.c`, or `.c` where the owner has no name."""
    for node in every_node(source):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            yield name or (f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else "")


def looks_at_other_rows(source):
    """The loop: who asks which rows outside a pool are violated."""
    return [name for name in calls(source) if name.split(".")[-1] in ("Slacks", "outside")]


def opens_runs(source):
    """Who takes a run out of a program, or makes a batch of one."""
    return [name for name in calls(source) if name.endswith(("program.run", "program.as_batch"))]


def computes_a_gap(source):
    """Who writes 1 − a · b / c, or 1 − a / b / c: two bounds and how far they are apart."""
    return [
        ast.unparse(node)
        for node in every_node(source)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and isinstance(node.left, ast.Constant)
        and node.left.value == 1
        and any(map(is_ratio_of_bounds, ast.walk(node.right)))
    ]


def is_ratio_of_bounds(node):
    def of(kind, node):
        return isinstance(node, ast.BinOp) and isinstance(node.op, kind)

    return of(ast.Div, node) and of(ast.Mult | ast.Div, node.left)


def knows_where_keys_live(source):
    return [
        dotted(node)
        for node in every_node(source)
        if isinstance(node, ast.Attribute) and dotted(node).endswith("program.stored")
    ]


ONE_OF_EACH = [
    (looks_at_other_rows, {"working_set.py"}, "new = Slacks(program).worst(W).outside(chosen, 9)"),
    (opens_runs, {"answer.py"}, "[solve(program.run(k)) for k in range(program.runs)]"),
    (computes_a_gap, {"bounds.py", "certificate.py"}, "gap = 1 - float(y @ b * least / X.trace())"),
    (computes_a_gap, {"bounds.py", "certificate.py"}, "gap = 1.0 - gained / steepness * least / size"),
    (knows_where_keys_live, {"working_set.py"}, "few and not self.program.stored"),
]


@pytest.mark.parametrize(("finds", "homes", "wrong"), ONE_OF_EACH, ids=lambda x: getattr(x, "__name__", ""))
def test_programs_have_one_loop_one_opener_of_runs_and_one_gap(finds, homes, wrong):
    programs = sorted((ROOT / "program").rglob("*.py"))
    found = {path.name for path in programs if finds(path.read_text(encoding="utf8"))}
    assert found == homes
    assert finds(wrong)
    assert not finds(
        "gap = bounds.relative_gap(lower, least, size)\nrows = Rows.of(program)\nsize = 1 - 1 / q"
    )


KNOW_THE_PROGRAM = {
    "entrywise": set(),  # its route is that of `interior_engine`
    "schatten": {"route"},
    "frobenius": {"route", "gram", "soft_gram", "dense"},  # the last three take all runs of a batch at once
    "extended_precision": {"route", "pool"},  # doubled numbers are made from the keys
}


def knows_the_program(source):
    return "attsvm.program.constraints.Constraints" in imports(source)


@pytest.mark.parametrize("folder", KNOW_THE_PROGRAM)
def test_engines_see_rows_and_routes_the_program(folder):
    files = sorted((ROOT / "program" / folder).glob("*.py"))
    found = {path.stem for path in files if knows_the_program(path.read_text(encoding="utf8"))}
    assert found == KNOW_THE_PROGRAM[folder]
    assert knows_the_program("def f():\n    from attsvm.program.constraints import Constraints")
    assert not knows_the_program("from attsvm.program.constraints import unit")


# ---------------------------------------------------------------------- files that stay open

REPOSITORY = Path(__file__).parents[1]


def left_open(source):
    """Lines that read a file and leave its closing to the garbage collector: during another test, say."""
    nodes = every_node(source)
    closed = {id(item.context_expr) for node in nodes if isinstance(node, ast.With) for item in node.items}
    for node in nodes:
        if isinstance(node, ast.Call) and dotted(node.func) in ("np.load", "numpy.load", "open"):
            is_map = any(option.arg == "mmap_mode" for option in node.keywords)
            if id(node) not in closed and not is_map:
                yield node.lineno


@pytest.mark.parametrize("folder", ["src", "tests", "lab"])
def test_no_file_is_left_to_the_garbage_collector(folder):
    sources = {str(path): path.read_text(encoding="utf8") for path in (REPOSITORY / folder).rglob("*.py")}
    assert sources
    assert not {path: lines for path, text in sources.items() if (lines := list(left_open(text)))}


def test_the_search_for_open_files_can_fail():
    assert list(left_open("x = 1\nv = np.load(file)['v']")) == [2]
    assert list(left_open("with open(a) as f, np.load(f) as g:\n    json.load(open(b))")) == [2]
    assert not list(left_open("with np.load(f) as g:\n    h = np.load(f, mmap_mode='r')"))


# ---------------------------------------------------------------------- what is loaded


def loaded_by(code):
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_import_attsvm_loads_nothing_heavy():
    assert not loaded_by("import attsvm") & (HEAVY | {"numpy"})


def test_the_data_model_loads_only_numpy():
    assert not loaded_by("import attsvm; attsvm.Tokens; attsvm.frobenius; attsvm.scores") & HEAVY


def test_the_check_for_heavy_imports_can_fail():
    assert "numba" in loaded_by("import attsvm, numba")


def test_every_public_name_exists_and_unknown_ones_do_not():
    assert all(hasattr(attsvm, name) for name in attsvm.__all__)
    assert set(attsvm.__all__) <= set(dir(attsvm))
    with pytest.raises(AttributeError, match="no attribute 'maximum'"):
        attsvm.maximum  # noqa: B018


def test_no_two_public_names_differ_in_capitals_only():
    assert len({name.lower() for name in attsvm.__all__}) == len(attsvm.__all__)


OFFERED = ["gaussian", "uniform", "log_loss", "LogOdds", "SquaredError", "correlation", "Interrupted"]


@pytest.mark.parametrize("name", OFFERED)
def test_what_docstrings_offer_is_public(name):
    assert name in attsvm.__all__


def test_training_and_paths_have_the_same_default_weight():
    one, other = (signature(f).parameters["weight"] for f in (attsvm.train, attsvm.regularisation_path))
    assert one.default is other.default
    assert one.default == attsvm.FullWeight()


# ---------------------------------------------------------------------- how much there is to know


SIZES = {
    "src/attsvm": 40_330,
    "src/attsvm/_support": 640,
    "src/attsvm/cli": 1_160,
    "src/attsvm/comparison": 1_820,
    "src/attsvm/data": 1_500,
    "src/attsvm/datasets": 570,
    "src/attsvm/explorer": 490,
    "src/attsvm/heads": 2_410,
    "src/attsvm/jax": 310,
    "src/attsvm/next_token": 1_390,
    "src/attsvm/norms": 810,
    "src/attsvm/numbers": 2_190,
    "src/attsvm/plotting": 380,
    "src/attsvm/probe": 4_510,
    "src/attsvm/program": 10_830,
    "src/attsvm/torch": 4_760,
    "src/attsvm/training": 6_540,
    "src/attsvm_lab": 30_550,
    "lab": 13_350,
    "tests": 42_900,
}
"""Lines that each room may have, as of the last time it was made smaller. A line that comes in is paid for by
one that goes; who raises a number says in the changelog what was removed instead."""

NAMES = {"": 75, ".datasets": 11, ".heads": 8, ".jax": 3, ".next_token": 25, ".probe": 7, ".torch": 14}
"""Public names that each module of attsvm may have."""


def lines_of(folder):
    return sum(path.read_text(encoding="utf8").count("\n") for path in folder.rglob("*.py"))


def too_large(sizes):
    """Rooms with more lines than they may have, and rooms of the library without a number."""
    rooms = {f"src/attsvm/{path.name}" for path in ROOT.iterdir() if any(path.rglob("*.py"))}
    yield from rooms - sizes.keys()
    yield from (room for room, most in sizes.items() if lines_of(REPOSITORY / room) > most)


def test_no_room_grows():
    assert not sorted(too_large(SIZES))


def test_a_room_that_grew_or_is_new_is_named():
    fewer = SIZES | {"src/attsvm": SIZES["src/attsvm"] // 2}
    fewer.pop("src/attsvm/norms")
    assert sorted(too_large(fewer)) == ["src/attsvm", "src/attsvm/norms"]


def names_of(module):
    return getattr(importlib.import_module(f"attsvm{module}"), "__all__", None) or attsvm.__all__


@pytest.mark.parametrize("module", NAMES)
def test_no_module_offers_more_names(module):
    pytest.importorskip(
        {".heads": "transformers", ".torch": "torch", ".probe": "sklearn"}.get(module, "numpy")
    )
    assert 0 < len(names_of(module)) <= NAMES[module]
