"""Every link of the site leads somewhere: files and anchors within it are looked up, others are listed only.

    python .ci/check_links.py build/site

Prints the addresses outside, each with the number of pages that name it, and ends with 1 where a link within
the site is broken.
"""

import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

NOT_FILES = ("data:", "javascript:", "mailto:", "blob:")


class Page(HTMLParser):
    """What a page links to, and the names within it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.names: set[str] = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {str(given[key]) for key in ("id", "name") if given.get(key)}
        for key in ("href", "src"):
            link = given.get(key)
            if link and not link.startswith(NOT_FILES):
                self.links.add(link)


def check(site: Path) -> tuple[list[str], Counter[str]]:
    """The broken links as "page → link", and how many pages name each address outside."""
    pages = {file.resolve(): Page(file.read_text(encoding="utf8")) for file in sorted(site.rglob("*.html"))}
    broken, outside = [], Counter[str]()
    for file, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                outside[link.partition("#")[0]] += 1
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            known = pages.get(target)
            missing = known is not None and unquote(parts.fragment) not in known.names
            if not target.is_file() or missing:
                broken.append(f"{file.relative_to(site.resolve())} → {link}")
    return broken, outside


def main(folder: str) -> int:
    site = Path(folder)
    broken, outside = check(site)
    if not list(site.glob("*.html")):
        broken = [f"{folder} has no pages: build the site first, with make docs"]
    for address, count in sorted(outside.items()):
        print(f"outside: {address} ({count})")
    for line in broken:
        print(f"broken: {line}", file=sys.stderr)
    print(f"{len(outside)} addresses outside, not looked up; {len(broken)} links within are broken")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
