"""Uses the page as people do, in a headless browser: python page_in_browser.py BASE_URL CHROMIUM [FOLDER].

With a folder it leaves screenshots there, in light and dark.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

SECONDS = 60_000  # milliseconds of patience: the model computes on a CPU


def opened(browser: Browser, base_url: str, **options: str) -> tuple[Page, list[str]]:
    """The page once the model is ready, and what goes wrong in it."""
    page = browser.new_context(viewport={"width": 900, "height": 1100}, **options).new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith(base_url) else wrong.append(request.url))
    page.goto(base_url)
    expect(page.locator("#model")).to_contain_text("ready", timeout=SECONDS)
    return page, wrong


def ask(page: Page, text: str) -> str:
    """The answer to a message that is sent by the keyboard."""
    page.locator("#text").fill(text)
    page.locator("#text").press("Enter")
    expect(page.locator("#send")).to_be_enabled(timeout=SECONDS)
    return page.locator("#messages p").last.locator("span").inner_text()


def a_chat_streams_and_has_figures(page: Page) -> None:
    """Tokens, time to the first one, tokens/s, and gauges."""
    page.locator("#tokens").fill("40")
    assert ask(page, "Tell me about the sea.")
    expect(page.locator("#figures")).to_contain_text("40 out")
    expect(page.locator("#figures")).to_contain_text("tokens/s")
    expect(page.locator("#kv_pool")).to_contain_text("%")
    expect(page.locator("#settings")).to_contain_text("max model len")


def an_answer_can_be_stopped(page: Page) -> None:
    """By Escape; the next one starts afresh."""
    page.locator("#tokens").fill("3000")
    page.locator("#text").fill("Count to a million.")
    page.locator("#text").press("Enter")
    expect(page.locator("#messages p").last.locator("span")).not_to_be_empty(timeout=SECONDS)
    page.keyboard.press("Escape")
    expect(page.locator("#messages")).to_contain_text("(stopped)", timeout=SECONDS)
    expect(page.locator("#running")).to_have_text("0", timeout=SECONDS)
    page.locator("#clear").click()
    expect(page.locator("#messages")).to_be_empty()


def a_tool_and_a_schema(page: Page) -> None:
    """Examples that can be edited; a mistake is named."""
    page.locator("#tokens").fill("120")
    page.locator("#extra").select_option("tool")
    name, _, arguments = ask(page, "How warm is it in Rome?").partition(" ")
    assert name == "get_weather"
    assert json.loads(arguments).keys() == {"city", "unit"}
    page.locator("#clear").click()
    page.locator("#extra").select_option("schema")
    assert json.loads(ask(page, "Is water wet?")).keys() == {"answer", "certain"}
    page.locator("#json").fill("{")
    ask(page, "Is it?")
    expect(page.locator("#messages .error")).to_contain_text("JSON schema of the answer")
    page.locator("#extra").select_option("text")


def everything_is_reached_by_keyboard(page: Page) -> None:
    """Tab visits the fields and buttons in their order."""
    page.locator("#text").focus()
    visited = []
    for _ in range(4):
        page.keyboard.press("Tab")
        visited.append(page.evaluate("document.activeElement.id"))
    assert visited == ["send", "clear", "tokens", "extra"], visited


def screenshots(browser: Browser, base_url: str, folder: Path) -> None:
    """A conversation in both colours."""
    for scheme in ("light", "dark"):
        page, _ = opened(browser, base_url, color_scheme=scheme)
        page.locator("#tokens").fill("60")
        ask(page, "Tell me a story about a lighthouse.")
        page.screenshot(path=folder / f"page-{scheme}.png")
        page.context.close()


def main() -> None:
    base_url, chromium, *folder = sys.argv[1:]
    with sync_playwright() as playwright:
        # The sandbox of a browser needs user namespaces, which containers of tests lack.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, wrong = opened(browser, base_url)
        checks: list[Callable[[Page], None]] = [
            a_chat_streams_and_has_figures,
            an_answer_can_be_stopped,
            a_tool_and_a_schema,
            everything_is_reached_by_keyboard,
        ]
        for check in checks:
            print(check.__name__, flush=True)
            check(page)
        assert not wrong, wrong
        if folder:
            screenshots(browser, base_url, Path(folder[0]))


if __name__ == "__main__":
    main()
