"""Pages of source files with a name for every line: links to them work without a repository."""

import os
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

from fedloom.machine.install import ROOT

LINKED: set[Path] = set()  # files with a link, which get a page when the site is built


def source_link(file: Path, line: int = 1) -> str:
    """Return a link to a line of a file, for a page one folder below the site's top."""
    LINKED.add(file)
    path = file.relative_to(ROOT)
    return f'<a class="source" href="../source/{path}.html#line-{line}">{path.name}</a>'


def write_sources(site: Path) -> None:
    """Write a page of every file with a link into the site."""
    for file in LINKED:
        path = file.relative_to(ROOT)
        page = site / "source" / f"{path}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        look = HtmlFormatter(full=True, title=str(path), lineanchors="line", linenos="inline")
        text = highlight(file.read_text(), get_lexer_for_filename(file.name), look)
        home = os.path.relpath(site / "index.html", page.parent)
        text = text.replace("<h2>", f'<a href="{home}">FedLoom</a>\n<h2>', 1)
        phone = '<head>\n<meta name="viewport" content="width=device-width">'
        page.write_text(text.replace("<head>", phone, 1))
