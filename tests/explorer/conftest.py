"""The page in a real browser, opened afresh for every file of tests; its engine also in Node."""

import json
import shutil
import subprocess
from importlib.resources import files

import pytest

from attsvm.explorer import page, presets

WAIT = """
const pause = () => new Promise((next) => setTimeout(next, 10));
for (let k = 0; k < 1000 && !window.explorer?.now; k++) await pause();
"""
SETTLE = """
for (let k = 0; k < 3000; k++) {
  await pause();
  const { waiting, stale, simulation, state } = explorer;
  if (!waiting && !stale.program && simulation.steps >= state.time) return true;
}
throw new Error("the page does not settle");
"""


class Browser:
    """The page, and what its modules answer."""

    def __init__(self, driver, file):
        self.driver, self.file = driver, file

    def open(self, address=""):
        """Load the page afresh, at an address of its own."""
        self.driver.get("about:blank")
        self.driver.get(self.file.as_uri() + address)
        return self.run("return true")

    def run(self, script, *arguments):
        """The value of a script, after the page's own modules are there."""
        body = "const done = arguments[arguments.length - 1], given = [...arguments].slice(0, -1);"
        body += f"(async () => {{ {WAIT} {script} }})().then((x) => done(JSON.stringify({{ok: x ?? null}})),"
        body += "(error) => done(JSON.stringify({bad: String(error.stack || error)})));"
        answer = json.loads(self.driver.execute_async_script(body, *arguments))
        assert "bad" not in answer, answer.get("bad")
        return answer["ok"]

    def settle(self):
        """Wait until the frames and the training of the page are done."""
        return self.run(SETTLE)

    def complaints(self):
        """What the console holds, errors and warnings."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def requests(self):
        """The addresses that the page has asked for."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def load(browser, name, **patch):
    """A preset with a short training, so that it settles soon."""
    browser.run("explorer.loadPreset(given[0], given[1], false)", name, {"time": 30} | patch)
    browser.settle()


@pytest.fixture(scope="module")
def browser(tmp_path_factory, chrome):
    file = tmp_path_factory.mktemp("explorer") / "explorer.html"
    file.write_text(page(), encoding="utf8")
    found = Browser(chrome, file)
    found.open()
    return found


class Node:
    """Node.js with the modules of the page, of which those that draw nothing run there."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        modules = folder / "node_modules" / "explorer"
        modules.mkdir(parents=True)
        (modules / "package.json").write_text('{"type": "module"}')
        for file in files("attsvm.explorer").joinpath("web").iterdir():
            if file.name.endswith(".js"):
                (modules / file.name).write_text(file.read_text(encoding="utf8"), encoding="utf8")

    def run(self, script, *arguments):
        """The value of a script, as of `Browser.run`."""
        file = self.folder / "script.mjs"
        body = "import {readFileSync} from 'node:fs';"
        body += "const {given, explorer} = JSON.parse(readFileSync(0, 'utf8'));"
        body += f"const value = await (async () => {{ {script} }})();"
        body += "process.stdout.write(JSON.stringify(value ?? null));"
        file.write_text(body, encoding="utf8")
        given = json.dumps({"given": arguments, "explorer": {"presets": presets()}})
        done = subprocess.run(
            [self.program, str(file)], input=given.encode(), capture_output=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def engine(request, tmp_path_factory):
    """What runs the modules that draw nothing: the page in the browser; without one, Node."""
    try:
        return request.getfixturevalue("browser")
    except pytest.skip.Exception:
        if (program := shutil.which("node")) is None:
            raise
        return Node(program, tmp_path_factory.mktemp("engine"))
