"""What ``make docs`` does besides mkdocs: the pictures of ``make e2e``, pipes in tables, and no files of other hosts.

``mkdocs.yml`` names this file under ``hooks``; mkdocs calls the functions ``on_...``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PICTURES = Path(__file__).resolve().parents[1] / "var" / "e2e"
"""Where ``make e2e`` writes them, as PNG files."""
PAGE = "screens.md"
NO_PICTURES = "This build has none: run `make e2e`, then `make docs`."
_OTHER_HOST = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
_CODE = re.compile(r"<code>[^<]*</code>")


def pictures() -> list[Path]:
    return sorted(PICTURES.glob("*.png"))


def sections(names: Iterable[str]) -> str:
    """A section for each picture; ``names`` are those of the files, without ``.png``."""
    texts = [f"## {name.replace('-', ' ').capitalize()}\n\n![{name}](screens/{name}.png)\n" for name in names]
    return "\n".join(texts) or NO_PICTURES


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in pictures():
        files.append(File.generated(config, f"screens/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri != PAGE:
        return markdown
    return f"{markdown}\n{sections(path.stem for path in pictures())}\n"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    r"""In a table ``\|`` is a pipe, also in code; Python's Markdown leaves the backslash there."""
    return _CODE.sub(lambda code: code[0].replace("\\|", "|"), html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Raises PluginError when the page would load something from another host."""
    if file := _OTHER_HOST.search(output):
        raise PluginError(f"{page.file.src_uri} loads a file of another host: {file[0]}")
    return output
