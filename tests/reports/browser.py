"""Headless Chromium for the tests of the page; without it they fail and say how to get it."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=3000"
)
# Measured inside a frame of the asked width: a headless window is never as narrow as a phone. Sent to the outer page,
# whose DOM is dumped.
PROBE = """<script>
const seen = [];
addEventListener('securitypolicyviolation', e => seen.push('blocked ' + e.blockedURI));
addEventListener('error', e => seen.push('error ' + (e.message || e.target.tagName)), true);
addEventListener('load', () => {
  const inner = document.documentElement.clientWidth;
  const wide = [...document.querySelectorAll('body *')].filter(
    e => !e.closest('.scroll') && !e.closest('.sr') && e.getBoundingClientRect().right > inner + 1)
    .map(e => e.outerHTML.slice(0, 120));
  const text = s => [...document.querySelectorAll(s)].map(e => e.textContent.trim());
  parent.postMessage(JSON.stringify({
    width: innerWidth, client: inner, scroll: document.documentElement.scrollWidth, wide: wide.slice(0, 3), seen,
    requests: performance.getEntriesByType('resource').map(r => r.name),
    bars: document.querySelectorAll('svg.bar').length, columns: document.querySelectorAll('svg.figure rect.col').length,
    lines: document.querySelectorAll('svg.figure polyline').length, headings: text('h2'), h1: text('h1')[0],
    scripts: document.querySelectorAll('script').length, pwned: window.pwned || 0,
    texts: text('svg.figure text.title'), height: document.documentElement.scrollHeight,
    smallest: Math.min(...[...document.querySelectorAll('svg.figure text')].map(e => e.getBoundingClientRect().height)),
  }), '*');
});
</script>"""


def chromium() -> str:
    """The browser's path.

    Fails the test if there is none: the page is only known to work if it was looked at.
    """
    for name in (os.environ.get("ROLLONCE_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and (found := shutil.which(name)):
            return found
    pytest.fail(
        "the report page is tested in a browser: apt-get install chromium, or set ROLLONCE_CHROMIUM to a Chromium or "
        "Chrome"
    )


def look(page: Path, width: int) -> dict[str, Any]:
    """Load a page at a width and say what was found; ``console`` holds what the browser complained of."""
    text = page.read_text(encoding="utf-8")
    # Our probe is a script, which the page itself allows nobody: its policy is taken out, and a listener counts what it
    # would have blocked.
    probed = text.replace(
        "default-src 'none'; style-src 'unsafe-inline'",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
    )
    assert probed != text
    copy = page.with_name(f"probed-{width}.html")
    copy.write_text(probed.replace("<head>", "<head>" + PROBE, 1), encoding="utf-8")
    outer = page.with_name(f"outer-{width}.html")
    outer.write_text(
        "<body><script>addEventListener('message', e => { document.body.dataset.found = e.data; });</script>"
        f"<iframe src='{copy.name}' style='width:{width}px;height:800px;border:0'></iframe></body>"
    )
    with tempfile.TemporaryDirectory() as profile:
        ran = subprocess.run(
            [
                chromium(),
                *FLAGS.split(),
                f"--user-data-dir={profile}",
                "--window-size=1400,1000",
                "--dump-dom",
                outer.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=600,
        )
    found = re.search(r'data-found="([^"]*)"', ran.stdout)
    assert found, f"the page did not load: {ran.stderr[-2000:]}"
    console = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found.group(1))) | {"console": console}
