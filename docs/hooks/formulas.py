"""Formulas as MathML, made when the site is built: browsers typeset it, nothing is fetched."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>', re.S
)


def on_page_content(content: str, **_: Any) -> str:
    """Every formula of a page."""
    return _FORMULA.sub(_typeset, content)


def _typeset(found: re.Match[str]) -> str:
    display = "block" if found["open"] == "[" else "inline"
    return str(convert(html.unescape(found["tex"]).strip(), display=display))
