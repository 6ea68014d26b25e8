"""What every page is rendered with: one jinja environment, and text as people write it."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined
from markupsafe import Markup, escape


def make_page_environment(undefined: type[Undefined] = StrictUndefined) -> Environment:
    """The environment of the templates: everything escaped, with the filters ``sub`` and ``wbr``.

    Args:
        undefined: What a name is that nothing is known of: an error, unless the page says otherwise.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=undefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(sub=mark_up_sentence, wbr=make_name_breakable)
    return environment


def mark_up_sentence(text: str) -> Markup:
    """``B_eff`` as people write it, and what stands between backticks as code."""
    marked = escape(text).replace("B_eff", Markup("B<sub>eff</sub>"))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(marked)))


def make_name_breakable(text: str) -> Markup:
    """A name that may break after an underscore or a hyphen."""
    return Markup(re.sub(r"([_/-])", r"\1<wbr>", str(escape(text))))
