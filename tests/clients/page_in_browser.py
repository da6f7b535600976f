"""Uses the page as people do, in a headless browser: python page_in_browser.py VIA PLACE CHROMIUM [FOLDER].

VIA is `server` or `gateway`, PLACE a `Place` as JSON. With a folder it leaves screenshots there, in light and dark.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from families.checks import WRONG_KEY, Place
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

PATIENCE = 60_000  # milliseconds: the model computes on a CPU
CHAT, STATE, MODELS = "**/v1/chat/completions", "**/page/state?*", "**/v1/models"


def opened(browser: Browser, place: Place, **options: str) -> tuple[Page, list[str]]:
    """The page once the model is ready, and what goes wrong in it. The key is entered by hand."""
    page = browser.new_context(viewport={"width": 900, "height": 1100}, **options).new_page()
    page.set_default_timeout(PATIENCE)
    wrong: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(place.url) else wrong.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(place.url)
    expect(page.locator("#model")).to_have_text("an API key is needed")
    page.locator("#key").fill(WRONG_KEY)
    page.locator("#key").press("Enter")
    expect(page.locator("#model")).to_have_text("this key is not accepted")
    expect(page.locator("#main")).to_be_hidden()
    page.locator("#key").fill(place.key)
    page.locator("#key").press("Enter")
    expect(page.locator("#model")).to_contain_text("· ready")
    expect(page.locator("#access")).to_be_hidden()
    # The answers without a key are errors in the console.
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    return page, wrong


def sent_with(page: Page, **fields: Any) -> list[dict[str, Any]]:
    """Add fields to the requests of the chat from here on. Returns the list of their bodies."""
    bodies: list[dict[str, Any]] = []

    def send(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        route.continue_(post_data=json.dumps(bodies[-1] | fields))

    page.unroute(CHAT)
    page.route(CHAT, send)
    return bodies


def ask(page: Page, text: str) -> str:
    """The answer to a message that is sent by the keyboard."""
    page.locator("#text").fill(text)
    page.locator("#text").press("Enter")
    expect(page.locator("#send")).to_be_enabled()
    return page.locator("#messages p").last.locator("span").inner_text()


def ask_for_long(page: Page) -> None:
    """Begin an answer that does not end by itself."""
    page.locator("#tokens").fill("3000")
    page.locator("#text").fill("Count to a million.")
    page.locator("#text").press("Enter")
    expect(page.locator("#messages p").last.locator("span")).not_to_be_empty()


def a_chat_streams_and_has_figures(page: Page) -> None:
    """Tokens, time to the first one, tokens/s, and gauges; the next turn has the conversation so far."""
    bodies = sent_with(page, temperature=0, ignore_eos=True)
    page.locator("#tokens").fill("40")
    first = ask(page, "Tell me about the sea.")
    assert first
    expect(page.locator("#figures")).to_contain_text("40 out")
    expect(page.locator("#figures")).to_contain_text("tokens/s")
    expect(page.locator("#kv_pool")).to_contain_text("%")
    expect(page.locator("#rate")).not_to_have_text("–")
    ask(page, "And about ships?")
    assert [message["content"] for message in bodies[1]["messages"]] == [
        "Tell me about the sea.",
        first,
        "And about ships?",
    ]


def an_answer_can_be_stopped(page: Page) -> None:
    """By Escape; what has come stays in the conversation."""
    sent_with(page, temperature=0, ignore_eos=True)
    ask_for_long(page)
    page.keyboard.press("Escape")
    expect(page.locator("#messages")).to_contain_text("(stopped)")
    expect(page.locator("#running")).to_have_text("0")


def a_new_conversation_leaves_the_answer_that_is_coming(page: Page) -> None:
    """Nothing of it is in the next request."""
    bodies = sent_with(page, temperature=0, ignore_eos=True)
    ask_for_long(page)
    page.locator("#clear").click()
    expect(page.locator("#messages")).to_be_empty()
    expect(page.locator("#send")).to_be_enabled()
    page.locator("#tokens").fill("4")
    ask(page, "Hello.")
    assert bodies[-1]["messages"] == [{"role": "user", "content": "Hello."}]


def a_tool_and_a_schema(page: Page) -> None:
    """Examples that can be edited; a mistake is named, and the question is there to be sent again."""
    sent_with(page, temperature=0)
    city = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    city["additionalProperties"] = False
    page.locator("#clear").click()
    page.locator("#tokens").fill("120")
    page.locator("#extra").select_option("tool")
    assert "get_weather" in page.locator("#json").input_value()
    page.locator("#json").fill(json.dumps({"type": "function", "function": {"name": "weather", "parameters": city}}))
    name, _, arguments = ask(page, "How warm is it in Rome?").partition(" ")
    assert name == "weather"
    assert json.loads(arguments)["city"] in {"Rome", "Oslo"}
    page.locator("#clear").click()
    page.locator("#extra").select_option("schema")
    page.locator("#json").fill(json.dumps(city))
    assert json.loads(ask(page, "Where is the Colosseum?"))["city"] in {"Rome", "Oslo"}
    page.locator("#json").fill("{")
    ask(page, "Is it?")
    expect(page.locator("#messages .error")).to_contain_text("JSON schema of the answer")
    expect(page.locator("#text")).to_have_value("Is it?")
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
        response = route.fetch()
        if response.status != 200:  # without a key
            return route.fulfill(response=response)
        models = response.json()
        models["data"].append(models["data"][0] | {"id": "another"})
        return route.fulfill(json=models)

    def of_another(route: Route) -> None:
        replicas = [{"ready": False, "kv_pool": 0.42, "running": 7, "waiting": 1}] * 2 + [
            {"ready": True, "kv_pool": None}
        ]
        state = {"version": "1", "ready": False, "replicas": replicas, "tokens_per_second": 5, "prefix_hits": None}
        route.fulfill(json=state | {"generates": False, "gateway": True, "held": 3, "settings": {}})

    page.route(MODELS, with_another)
    page.route("**/page/state?model=another", of_another)
    page.reload()
    key = json.loads(sys.argv[2])["key"]
    page.locator("#key").fill(key)
    page.locator("#key").press("Enter")
    page.locator("#models").select_option("another")
    expect(page.locator("#model")).to_contain_text("another · not ready")
    for _ in range(2):
        with page.expect_response("**/page/state?model=another"):
            pass
    expect(page.locator("#kv_pool")).to_have_text("42 %")
    expect(page.locator("#running")).to_have_text("14")
    expect(page.locator("#held")).to_have_text("3")
    expect(page.locator("#rows tr").last).to_contain_text("–")
    expect(page.locator("#chat")).to_be_hidden()
    page.locator("#models").select_option("m")
    expect(page.locator("#model")).to_contain_text("m · ready")
    expect(page.locator("#chat")).to_be_visible()


def screenshots(browser: Browser, place: Place, via: str, folder: Path) -> None:
    """A conversation in both colours."""
    for scheme in ("light", "dark"):
        page, _ = opened(browser, place, color_scheme=scheme)
        sent_with(page, temperature=0)
        page.locator("#tokens").fill("60")
        ask(page, "Tell me a story about a lighthouse.")
        with page.expect_response(STATE):
            pass
        page.screenshot(path=folder / f"page-{via}-{scheme}.png")
        page.context.close()


def main() -> None:
    via, given, chromium, *folder = sys.argv[1:]
    place = Place(**json.loads(given))
    own = {"server": a_server_shows_its_settings, "gateway": a_gateway_shows_its_replicas}
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        # The sandbox of a browser needs user namespaces, which containers of tests lack.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page, wrong = opened(browser, place)
        checks: list[Callable[[Page], None]] = [
            a_chat_streams_and_has_figures,
            own[via],
            an_answer_can_be_stopped,
            a_new_conversation_leaves_the_answer_that_is_coming,
            a_tool_and_a_schema,
            everything_is_reached_by_keyboard,
        ]
        for check in checks:
            print(check.__name__, flush=True)
            check(page)
        assert not wrong, wrong
        one_of_several_models_is_chosen(page)
        if folder:
            screenshots(browser, place, via, Path(folder[0]))


if __name__ == "__main__":
    main()
