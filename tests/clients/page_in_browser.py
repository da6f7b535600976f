"""Uses the page as people do, in a headless browser: python page_in_browser.py VIA PLACE CHROMIUM [FOLDER].

VIA is `server` or `gateway`, PLACE a `Place` as JSON. With a folder it leaves screenshots there, in light and dark.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from families.checks import WRONG_KEY, Place
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

SECONDS = 60_000  # milliseconds of patience: the model computes on a CPU


def opened(browser: Browser, place: Place, **options: str) -> tuple[Page, list[str]]:
    """The page once the model is ready, and what goes wrong in it. The key is entered by hand."""
    page = browser.new_context(viewport={"width": 900, "height": 1100}, **options).new_page()
    wrong: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(place.url) else wrong.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(place.url)
    expect(page.locator("#model")).to_have_text("an API key is needed", timeout=SECONDS)
    page.locator("#key").fill(WRONG_KEY)
    page.locator("#key").press("Enter")
    expect(page.locator("#model")).to_have_text("this key is not known", timeout=SECONDS)
    page.locator("#key").fill(place.key)
    page.locator("#key").press("Enter")
    expect(page.locator("#model")).to_contain_text("· ready", timeout=SECONDS)
    expect(page.locator("#access")).to_be_hidden()
    # The answers without a key are errors in the console.
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
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


def a_server_shows_its_settings(page: Page) -> None:
    """Its flags in effect, and no list of models or replicas."""
    expect(page.locator("#settings")).to_contain_text("max model len")
    expect(page.locator("#replicas")).to_be_hidden()
    expect(page.locator("#choice")).to_be_hidden()


def a_gateway_shows_its_replicas(page: Page) -> None:
    """Each with its load."""
    expect(page.locator("#rows tr")).to_have_count(2)
    expect(page.locator("#rows")).to_contain_text("ready")
    expect(page.locator("#held")).to_have_text("0")
    expect(page.locator("#about")).to_be_hidden()


def one_of_several_models_is_chosen(page: Page) -> None:
    """The load and the chat are those of the chosen one; the choice outlasts a refresh."""

    def with_another(route: Route) -> None:
        state = route.fetch().json()
        replica = state["models"][0]["replicas"][0] | {"kv_pool": 0.42, "running": 7}
        state["models"].append({"names": ["another"], "ready": False, "replicas": [replica], "generates": False})
        route.fulfill(json=state)

    page.route("**/page/state", with_another)
    page.locator("#models").select_option("another")
    expect(page.locator("#model")).to_contain_text("another · not ready")
    expect(page.locator("#kv_pool")).to_have_text("42 %")
    page.wait_for_timeout(2500)  # two refreshes
    expect(page.locator("#running")).to_have_text("7")
    expect(page.locator("#chat")).to_be_hidden()
    page.unroute("**/page/state")
    expect(page.locator("#model")).to_contain_text("m · ready", timeout=SECONDS)


def screenshots(browser: Browser, place: Place, via: str, folder: Path) -> None:
    """A conversation in both colours."""
    for scheme in ("light", "dark"):
        page, _ = opened(browser, place, color_scheme=scheme)
        page.locator("#tokens").fill("60")
        ask(page, "Tell me a story about a lighthouse.")
        page.screenshot(path=folder / f"page-{via}-{scheme}.png")
        page.context.close()


def main() -> None:
    via, given, chromium, *folder = sys.argv[1:]
    place = Place(**json.loads(given))
    own = {"server": a_server_shows_its_settings, "gateway": a_gateway_shows_its_replicas}
    with sync_playwright() as playwright:
        # The sandbox of a browser needs user namespaces, which containers of tests lack.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, wrong = opened(browser, place)
        checks: list[Callable[[Page], None]] = [
            a_chat_streams_and_has_figures,
            own[via],
            an_answer_can_be_stopped,
            a_tool_and_a_schema,
            everything_is_reached_by_keyboard,
            one_of_several_models_is_chosen,
        ]
        for check in checks:
            print(check.__name__, flush=True)
            check(page)
        assert not wrong, wrong
        if folder:
            screenshots(browser, place, via, Path(folder[0]))


if __name__ == "__main__":
    main()
