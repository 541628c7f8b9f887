"""The docs site as `make docs` built it, in a real browser, from a folder. Run by `make test-browser`."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "results"))
from test_page_in_browser import CHROMIUM, opened

SITE = Path(__file__).parents[2] / "build" / "site"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt install chromium, or CHROMIUM=PATH"),
    pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="the site is not built: make docs"),
]
PAGES = {
    "docs/index.html": "Asynchronous federated learning",
    "docs/tutorial.html": "From nothing to a method of your own",
    "docs/reference/verbs.html": "offbeat compare",
    "docs/reference/python.html": "offbeat.core.protocol",
    "docs/explanation/staleness.html": "staleness.svg",
    "docs/strategies/fedbuff.html": "FedBuff",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(SITE, tmp_path_factory.mktemp("site") / "site"))  # browsers leave things behind


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [1200, 800])
def test_a_page_opens_without_messages_on_the_console(site, page, width):
    document, console = opened(site / page, width)
    assert console == []
    assert PAGES[page] in document
    for part in ("Tutorial", "How-to", "Reference", "Explanation"):
        assert f'<span class="caption-text">{part}</span>' in document


def test_the_index_redirects_to_the_documentation(site):
    assert 'content="0; url=docs/index.html"' in (site / "index.html").read_text()


def test_search_finds_a_verb(site):
    document, console = opened(site / "search.html")
    assert console == []
    found = site / "asked.html"
    found.write_text((site / "search.html").read_text().replace("</body>", f"<script>{ASK}</script></body>"))
    document, console = opened(found)
    assert console == []
    assert "reference/verbs.html" in document


ASK = "window.addEventListener('load', () => setTimeout(() => Search.performSearch('sweep'), 500));"


def test_nothing_is_loaded_from_other_servers(site):
    """Links may refer to other servers; scripts, styles, fonts and pictures may not."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'<(script|img|link|iframe)[^>]*(src|href)="(https?:)?//', text), path
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text(encoding="utf-8")), path
