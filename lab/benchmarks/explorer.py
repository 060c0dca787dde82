"""Frames per second of the explorer while a script drags a token.

    python lab/benchmarks/explorer.py [--seconds 5] [--rounds 1] [--against PAGE]

Six inputs of eight tokens with 64 starts, in headless Chromium without a GPU. The page's own animation frames
are counted while pointer events move a token. Processor times per frame are told too, because a busy machine
lowers the rate: the main thread, and where the system tells (/proc) those that paint beside it. --against
measures another page in turns with this one, by medians of the rounds. Needs selenium, chromium and
chromium-driver.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from selenium import webdriver

from attsvm.explorer import page

DRAG = """
const done = arguments[2], [seconds, selector] = arguments;
(async () => {
  while (!document.querySelector(selector)) await new Promise((next) => setTimeout(next, 50));
  const node = document.querySelector(selector), box = node.getBoundingClientRect();
  const root = document.getElementById("tokens"), middle = [box.x + box.width / 2, box.y + box.height / 2];
  const at = (k) => ({bubbles: true, pointerId: 1, isPrimary: true, button: 0,
    clientX: middle[0] + 60 * Math.sin(k / 20), clientY: middle[1] + 40 * Math.sin(k / 13)});
  root.setPointerCapture = () => {};
  node.dispatchEvent(new PointerEvent("pointerdown", at(0)));
  const frame = explorer.frame.bind(explorer), cost = [];
  explorer.frame = (t) => { const from = performance.now(); frame(t); cost.push(performance.now() - from); };
  const from = performance.now(), gaps = [];
  let k = 0, before = from;
  await new Promise((resolve) => requestAnimationFrame(function next(t) {
    root.dispatchEvent(new PointerEvent("pointermove", at(++k)));
    gaps.push(performance.now() - before);
    before = performance.now();
    if (before - from < 1000 * seconds) requestAnimationFrame(next); else resolve();
  }));
  const passed = performance.now() - from;
  root.dispatchEvent(new PointerEvent("pointerup", at(k)));
  delete explorer.frame;
  cost.sort((a, b) => a - b);
  const { simulation: { steps, data, runs } } = explorer, part = (q) => cost[Math.floor(q * cost.length)];
  const counts = { frames: k, steps, tokens: data.m, runs: runs.length };
  done({ fps: 1000 * k / passed, cost: part(0.5), slow: part(0.95), ...counts });
})();
"""


TOKEN = '[data-input="2"][data-token="3"] .mark'


def browser(width: int, height: int) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    flags = (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--window-size={width},{height}",
    )
    for flag in flags:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(120)
    return driver


def opened(file: Path) -> webdriver.Chrome:
    """A browser at the page with the large problem, after a drag that warms it up."""
    driver = browser(1280, 1000)
    driver.get(file.as_uri())
    time.sleep(3)
    driver.execute_script("explorer.started = true; explorer.loadPreset('six-inputs', {}, false)")
    driver.execute_async_script(DRAG, 2, TOKEN)
    driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    return driver


def frames(driver: webdriver.Chrome, seconds: float) -> dict[str, float]:
    """What a drag of so many seconds shows, and the processor time of its frames in milliseconds."""
    threads_before = busy(driver) | threads(driver.service.process.pid)
    measured = driver.execute_async_script(DRAG, seconds, TOKEN)
    threads_after = busy(driver) | threads(driver.service.process.pid)
    return measured | {
        name: 1000 * (threads_after[name] - threads_before.get(name, 0)) / measured["frames"]
        for name in threads_after
    }


def print_medians(name: str, rounds: list[dict[str, float]]) -> None:
    """One page's figures, by their medians."""
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    rate = f"{medians['fps']:.0f} frames per second over {medians['frames']:.0f} frames"
    print(f"{name}: {medians['tokens']:.0f} tokens, {medians['runs']:.0f} starts: {rate}")
    print(
        f"  work of the page by the clock: {medians['cost']:.1f} ms a frame, "
        f"{medians['slow']:.1f} in one of 20"
    )
    main = ", ".join(f"{key.removesuffix('Duration').lower()} {medians[key]:.1f}" for key in WANTED)
    print(
        f"  processor time of the main thread: {main} ms a frame; "
        f"{medians['steps']:.0f} steps in the last one"
    )
    if thread_shares := [f"{key} {medians[key]:.1f}" for key in THREADS.values() if key in medians]:
        print(f"  beside it: {', '.join(thread_shares)} ms a frame")


WANTED = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
THREADS = {"ThreadPoolForeg": "raster", "Compositor": "compositor", "VizCompositorTh": "display"}
"""Threads of Chromium that paint a page, by the names the kernel knows them by."""


def threads(root: int) -> dict[str, float]:
    """Seconds of processor time of the painting threads of a process and its children; none without /proc."""
    spent = dict.fromkeys(THREADS.values(), 0.0)
    family, waiting = {root}, [root]
    try:
        while waiting:
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                children = {int(each) for each in (task / "children").read_text().split()} - family
                family |= children
                waiting += children
                if (name := (task / "comm").read_text().strip()) in THREADS:
                    spent[THREADS[name]] += int((task / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError):
        return {}
    return spent


def busy(driver: webdriver.Chrome) -> dict[str, float]:
    """Seconds of processor time that the page's main thread has spent."""
    metrics = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return {each["name"]: each["value"] for each in metrics if each["name"] in WANTED}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--against", type=Path, help="another page, as attsvm explore has written it")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        written = Path(place) / "explorer.html"
        written.write_text(page(), encoding="utf8")
        pages = [written, *([asked.against.resolve()] if asked.against else [])]
        drivers = [opened(each) for each in pages]
        rounds = [[frames(each, asked.seconds) for each in drivers] for _ in range(asked.rounds)]
        for k, driver in enumerate(drivers):
            print_medians(pages[k].stem, [each[k] for each in rounds])
            driver.quit()
