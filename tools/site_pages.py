"""Hooks of mkdocs: Markdown from outside docs/ becomes pages of the site, and links lead to where these are there.

In the repository docs/noise.md links to ../studies/step/README.md; on the site both are pages, noise.html and
studies/step/README.html. A link to what is no page (a script, a configuration) becomes its text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = ("README.md", "CONTRIBUTING.md", "specs/README.md", "studies/**/README.md", "studies/**/*.svg")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_places: dict[str, str] = {}


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside, and notes where everything is: path in the repository -> path on the site."""
    _places.clear()
    for file in files:
        _places[f"docs/{file.src_uri}"] = file.src_uri
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            place = "index.md" if name == "README.md" else name
            _places[name] = place
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Its links, as they are on the site."""
    here = next(name for name, place in _places.items() if place == page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        image, text, target, anchor = link.groups()
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        wanted = os.path.normpath(PurePosixPath(here).parent / target)
        if wanted not in _places:
            return text
        place = os.path.relpath(_places[wanted], PurePosixPath(page.file.src_uri).parent)
        return f"{image}[{text}]({place}{anchor or ''})"

    return _LINK.sub(moved, markdown)
