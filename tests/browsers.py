"""Debian's Chromium under the hand of a test, and what it makes of a page."""

import os
import shutil
from contextlib import contextmanager

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--window-size=1280,1000",
    "--force-prefers-reduced-motion",
)


def elements(chrome, page):
    """The elements of a page after its scripts have run, as text."""
    chrome.get("about:blank")
    chrome.get(page.as_uri())
    return chrome.execute_script("return document.documentElement.outerHTML")


@contextmanager
def driven(*flags):
    """A browser that Selenium drives."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra test")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        missing = "needs Chromium and its driver: apt-get install chromium chromium-driver"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    chrome.set_script_timeout(120)
    try:
        yield chrome
    finally:
        chrome.quit()
