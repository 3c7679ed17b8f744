"""The colours of the live page: contrast, and eyes that see some colours alike."""

from __future__ import annotations

import io
import json
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import trio

from clearfunds.accounts import Ledger, Limit
from clearfunds.pages import Pages, serve_http
from clearfunds.testing import Box
from tests.pages.chromium import CHROMIUM, LIVE, WHY_NOT, browsing, shows
from tests.transports.peers import SECONDS

if TYPE_CHECKING:
    from tests.pages.chromium import Tab

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

CONTRAST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((each) => each / 255)
    .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
  const poor = [];
  let looked = 0;
  const check = (node, colour, least) => {
    const behind = [];
    for (let each = node; each; each = each.parentElement) {
      behind.unshift(getComputedStyle(each).backgroundColor);
    }
    // In the drawing, what is behind a text is the box of its group.
    const box = node.closest("g")?.querySelector("rect.node");
    if (box) behind.push(getComputedStyle(box).fill);
    const lights = [light(over([...behind, colour])), light(over(behind))].sort((x, y) => y - x);
    const ratio = (lights[0] + 0.05) / (lights[1] + 0.05);
    const what = `${node.tagName} ${node.textContent.slice(0, 30)}`;
    if (ratio < least) poor.push(`${ratio.toFixed(2)} < ${least}: ${what}`);
    looked += 1;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const never = ".unseen, noscript, option, title, script";
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility() || node.closest(never)) continue;
    const style = getComputedStyle(node);
    const points = parseFloat(style.fontSize);
    const large = points >= 24 || (points >= 18.66 && style.fontWeight >= 700);
    check(node, node instanceof SVGElement ? style.fill : style.color, large ? 3 : 4.5);
  }
  // What says something without being text.
  for (const [selector, property] of MARKS) {
    const node = document.querySelector(selector);
    if (!node) poor.push(`there is no ${selector}`);
    else {
      const style = getComputedStyle(node);
      const solid = `${100 * style.opacity}%`;
      check(node.parentElement, `color-mix(in srgb, ${style[property]} ${solid}, transparent)`, 3);
    }
  }
  return { poor, looked };
})()"""

MARKS = (
    *((".bar > span", "backgroundColor"), (".dot", "backgroundColor")),
    *((".chart .stroke", "stroke"), (".tile .stroke", "stroke"), (".edge", "stroke")),
    *((".graph .tip", "fill"), ("rect.left", "fill")),
    *(("rect.node.waits", "stroke"), ("rect.node.still", "stroke")),
    *(("input[type=search]", "borderTopColor"), ("select", "borderTopColor")),
    *(("#matrix .culprit", "borderBottomColor"),),
)
"""Selectors, and the property that has the colour."""

SEEN = (
    *("#verdict .soon", "[data-state=waits]", "#accounts [data-state=owing]", "#legend .blocks"),
    *("#legend [data-state=throttled]", "#legend [data-state=clear]", "#matrix .culprit .name"),
    *("#matrix tbody td", "#holders .under.soon", "#history", "#headroom .bar", "#link"),
)
"""What has a colour because of what it says."""


async def busy_page(tab: Tab) -> None:
    await tab.until(LIVE)
    await shows(tab, "#then", "Look back")
    await shows(tab, "#verdict", "is cut off in")
    await tab.until("document.querySelector('#matrix .culprit') !== null")


def scene() -> tuple[Ledger, list[Any], list[Box]]:
    ledger = Ledger()
    server = ledger.open("server", limit=Limit(items=300))
    accounts = [ledger.open(f"pub-{n}", limit=Limit(items=10), parent=server) for n in range(9)]
    boxes = [Box(ledger, f"sub-{n}", patience=3600.0) for n in range(3)]
    for number, account in enumerate(accounts):
        with account.turn() as turn:
            for box in boxes:
                turn.send(box, b"", items=4 if number < 3 else 1 + number % 3, nbytes=100)
    return ledger, accounts, boxes


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_and_marks_have_the_contrast_that_they_need(scheme: str) -> None:
    """As WCAG 2.2 has it at level AA: 4.5 for text, 3 for large text and for marks."""
    ledger, accounts, boxes = scene()
    async with browsing() as browser, trio.open_nursery() as nursery:
        for account in accounts[:3]:
            nursery.start_soon(account.ensure_clear_funds)
        urls: list[str] = await nursery.start(partial(serve_http, Pages(ledger).handlers()))
        with trio.fail_after(2 * SECONDS):
            tab = await browser.open(urls[0] + "/", scheme=scheme)
            await busy_page(tab)
            look = CONTRAST.replace("MARKS", json.dumps(MARKS))
            found = await tab.evaluate(look)
            assert found["poor"] == []
            assert found["looked"] > 150
            await tab.evaluate("openDrawer('sub-0')")
            await shows(tab, "#owed-by", "pub-0")
            assert (await tab.evaluate(look))["poor"] == []
        nursery.cancel_scope.cancel()
    for box in boxes:
        box.settle_all()


def contrast_of(picture: bytes) -> float:
    """The ratio of the lightest to the darkest of a picture."""
    image: Any = import_module("PIL.Image").open(io.BytesIO(picture)).convert("RGB")

    def light(rgb: tuple[int, ...]) -> float:
        parts = [each / 255 for each in rgb]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lights = [light(colour) for _, colour in image.getcolors(image.width * image.height)]
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_eyes_that_see_some_colours_alike_read_it_all(scheme: str) -> None:
    """What has a colour is read by its words, of which the contrast stays."""
    pytest.importorskip("PIL.Image", reason="Pillow is not installed (pip install pillow)")
    ledger, accounts, boxes = scene()
    async with browsing() as browser, trio.open_nursery() as nursery:
        for account in accounts[:3]:
            nursery.start_soon(account.ensure_clear_funds)
        urls: list[str] = await nursery.start(partial(serve_http, Pages(ledger).handlers()))
        with trio.fail_after(4 * SECONDS):
            tab = await browser.open(urls[0] + "/", height=3000, scheme=scheme)
            await busy_page(tab)
            boxes_of: dict[str, list[int]] = await tab.evaluate(
                "Object.fromEntries([...arguments_].map((selector) => {"
                " const box = document.querySelector(selector).getBoundingClientRect();"
                " return [selector, [box.left, box.top, box.width, box.height].map(Math.round)];"
                "}))".replace("arguments_", str(list(SEEN)))
            )
            for kind in ("none", "protanopia", "deuteranopia", "tritanopia", "achromatopsia"):
                await tab.call("Emulation.setEmulatedVisionDeficiency", type=kind)
                for selector, (left, top, width, height) in boxes_of.items():
                    assert width > 0
                    picture = await tab.screenshot(clip=(left, top, width, height))
                    least = 1.3 if selector == "#headroom .bar" else 4.0
                    assert contrast_of(picture) >= least, (kind, selector)
            # Each mark has words, which differ.
            marks = "[...document.querySelectorAll('#legend .samples span:first-child')]"
            said = await tab.evaluate(f"{marks}.map((each) => each.textContent).filter(Boolean)")
            assert len(set(said)) == len(said) == 5
        nursery.cancel_scope.cancel()
    for box in boxes:
        box.settle_all()
