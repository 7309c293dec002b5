"""Hooks of mkdocs: the pages of the repository's root in the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PROJECT = "project"  # folder of the site
NAMES = (
    "README.md",
    "RESULTS.md",
    "BENCHMARKS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root as project/NAME.md."""
    for name in NAMES:
        content = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"{PROJECT}/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    source = page.file.src_uri
    is_root = posixpath.dirname(source) == PROJECT
    in_repository = posixpath.basename(source) if is_root else f"docs/{source}"

    def convert(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups(default="")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(in_repository), target))
        uri = f"{PROJECT}/{path}" if path in NAMES else path.removeprefix("docs/")
        if files.get_file_from_path(uri) is None:
            # Source files and folders are not part of the site.
            return match[0] if mark else f"`{path}`"
        return f"{mark}[{text}]({posixpath.relpath(uri, posixpath.dirname(source))}{anchor})"

    return LINK.sub(convert, markdown)
