"""Put the demo's table into README.md, and a picture of its report into docs/report.png (`make readme`)."""

import argparse
import base64
import re
import tempfile
from pathlib import Path

from browser import Browser, Page

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "demo/output"
WIDTH, HEIGHT = 1500, 950


def table_of(markdown: str) -> str:
    """Return the first table of a text, without its notes."""
    return re.search(r"(?:^\|.*\n)+", markdown, re.MULTILINE)[0]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    table = table_of((OUTPUT / "table.md").read_text(encoding="utf-8"))
    readme.write_text(text.replace(table_of(text), table), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(folder)
        page = Page(browser, OUTPUT / "report.html", width=WIDTH, height=HEIGHT)
        shot = base64.b64decode(page.send("Page.captureScreenshot", format="png")["data"])
        page.close()
        browser.close()
    (ROOT / "docs/report.png").write_bytes(shot)
    print(f"README.md and docs/report.png: as in {OUTPUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
