"""Plain data to one HTML file that holds everything it needs: no server, no network.

The drawing is a few hundred lines of JavaScript of our own, which makes SVG. A plotting library
would bring megabytes, marks that no keyboard reaches, and code that a strict content security
policy refuses; here every mark is an element with a name, colours follow the reader's theme, and
the policy allows these scripts alone, by their digests. What comes from data is written as JSON and
becomes text nodes, never markup.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from sphere_replay import __version__

SCRIPTS = (
    *("dom.js", "gains.js", "lines.js", "shapes.js", "cards.js", "results.js"),
    *("map.js", "memory.js", "inspector.js", "start.js"),
)
"""In the order in which they build upon each other."""
LARGEST = 10_000_000
"""Bytes of a page."""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="sphere-replay {version}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header class="top"><div><strong>{title}</strong><nav id="views" aria-label="Views"></nav>
<button id="theme" type="button">Theme: auto</button></div></header>
<main id="content" tabindex="-1"><noscript>The pictures are drawn by JavaScript that is part of this
file; nothing is fetched. Allow it to see them.</noscript></main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def to_html(
    title: str, experiments: Sequence[Mapping[str, Any]], inspector: Mapping[str, Any]
) -> str:
    """The page of some experiments and recordings."""
    style, script = _asset("page.css"), "\n".join(map(_asset, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        version=__version__,
        title=html.escape(title),
        style=style,
        script=script,
        data=embedded({"experiments": list(experiments), "inspector": dict(inspector)}),
    )


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element: no character in it can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files("sphere_replay.reports") / "web" / name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
