"""A conversation on the web page, in a real browser, with the real server and a real sandbox."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.support.chromium import Window, ask, open_window
from tests.support.keyed_chat import HOLD, KeyedChat
from tests.support.web_server import WebServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

PLOT = """I plot **both** curves.

```python
import matplotlib.pyplot as plt
import numpy as np

t = np.linspace(0, 12, 300)
for damping in (0.1, 0.5):
    plt.plot(t, np.exp(-damping * t) * np.cos(3 * t))
print('peaks', np.round(np.exp(-damping * 2.09), 3))
```"""
TABLE = """```python
import pandas as pd

table = pd.read_csv('sales.csv')
table.to_csv('copy.csv')
table
```"""
COMPARED = "The second one **decays faster**:\n\n| damping | left |\n|---|---:|\n| 0.5 | 0.352 |"
REPLIES = {
    "oscillation": [PLOT, COMPARED],
    "damping": [COMPARED],
    "sales": [TABLE, "Three rows."],
    "slow": ["Slowly does it. " + HOLD + "Now it is said."],
    "sleep": ["```python\nimport time\nprint('going to sleep')\ntime.sleep(600)\n```", "Woken."],
    "wrong": ["```python\nprint(missing)\n```", "That failed."],
    "sum": [
        "I add.\n\n```python\nprint(1 + 1)\n```\n\nNow I **explain**.",
        "It is 2. Likewise:\n\n```python example\nprint('never')\n```\n\nThat would print `never`.",
    ],
    "greeting": ["Good day."],
}
PLACE = """(output) => {
  const [own, cell] = [output, output.closest(".cell")].map((each) => each.getBoundingClientRect());
  return [own.left - cell.left, own.top - cell.top];
}"""
WAIT = "Wait for the current turn, or press Esc to stop it."
CSV = b"region,price\nnorth,10\nsouth,20\neast,33\n"


def answers(page: "Page") -> list[str]:
    return page.locator(".answer .prose").all_inner_texts()


def wait_for_answer(page: "Page", text: str) -> None:
    page.locator(".answer").filter(has_text=text).last.wait_for()


def width_of_figure(page: "Page") -> int:
    figure = page.locator(".exhibit img")
    return figure.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }")


def test_a_whole_conversation_with_a_figure(window: Window) -> None:
    page = window.page
    window.shoot("home")
    ask(page, "Plot a damped oscillation")
    wait_for_answer(page, "decays faster")
    assert page.locator(".asked-text").inner_text() == "Plot a damped oscillation"
    assert page.locator(".thought strong").inner_text() == "both"
    assert "np.linspace" in page.locator(".cell .code pre").inner_text()
    assert page.locator(".cell .t-keyword").first.inner_text() == "import"
    assert page.locator(".observation .output-text").inner_text().strip() == "peaks 0.352"
    assert width_of_figure(page) > 100
    assert (page.locator(".exhibit img").get_attribute("src") or "").startswith("blob:")
    assert page.locator(".answer td").all_inner_texts() == ["0.5", "0.352"]
    assert "2.0k tokens" in page.locator(".turn-foot").inner_text()
    assert page.locator(".session a[aria-current]").inner_text().startswith("Plot a damped")
    window.shoot("conversation")
    page.get_by_role("button", name=re.compile("Enlarge")).click()
    page.locator("dialog.lightbox img").wait_for()
    page.keyboard.press("Escape")
    page.reload()
    wait_for_answer(page, "decays faster")
    assert width_of_figure(page) > 100


def test_files_are_uploaded_and_what_comes_out_is_shown(window: Window) -> None:
    page = window.page
    page.locator(".composer input[type=file]").set_input_files(
        {"name": "sales.csv", "mimeType": "text/csv", "buffer": CSV}
    )
    assert "sales.csv" in page.locator(".pending-file").inner_text()
    ask(page, "Look at sales.csv")
    wait_for_answer(page, "Three rows")
    assert "sales.csv is in the workspace" in page.locator(".aside").first.inner_text()
    page.locator(".table-exhibit tbody tr").first.wait_for()
    assert page.locator(".table-exhibit tbody td").all_inner_texts()[:2] == ["north", "10"]
    with page.expect_download() as downloading:
        page.get_by_role("button", name=re.compile(r"Download copy\.csv")).click()
    assert Path(downloading.value.path()).read_text().startswith(",region,price")
    window.shoot("table")


def test_files_can_be_dropped_on_a_conversation(window: Window) -> None:
    page = window.page
    ask(page, "greeting")
    wait_for_answer(page, "Good day")
    dropped = page.evaluate_handle(
        """() => {
          const files = new DataTransfer();
          files.items.add(new File(["a,b\\n1,2\\n"], "dropped.csv", { type: "text/csv" }));
          return files;
        }"""
    )
    page.dispatch_event(".conversation", "dragenter", {"dataTransfer": dropped})
    assert page.locator(".conversation.dropping").count() == 1
    page.dispatch_event(".conversation", "drop", {"dataTransfer": dropped})
    page.locator(".aside").filter(has_text="dropped.csv is in the workspace").wait_for()
    expect(page.locator(".pending-file")).to_have_count(0)


def test_an_answer_is_shown_while_it_is_written(window: Window, chat: KeyedChat) -> None:
    page = window.page
    chat.go_on.clear()
    ask(page, "slow")
    page.locator(".live .prose").filter(has_text="Slowly does it.").wait_for()
    assert page.get_by_role("button", name=re.compile("Stop")).count() == 1
    chat.go_on.set()
    wait_for_answer(page, "Now it is said.")
    expect(page.locator("#announcer")).to_have_text(re.compile("Answer: Slowly does it. Now it"))


def test_only_new_answers_are_announced_and_without_marks(window: Window) -> None:
    page = window.page
    ask(page, "Compare the damping")
    wait_for_answer(page, "decays faster")
    announcer = page.locator("#announcer")
    expect(announcer).to_have_text(
        "Answer: The second one decays faster: damping, left. 0.5, 0.352."
    )
    page.reload()
    wait_for_answer(page, "decays faster")
    ask(page, "greeting")
    expect(announcer).to_have_text("Answer: Good day.")
    heard = """() => {
      window.heard = [];
      const place = document.getElementById("announcer");
      const note = () => window.heard.push(place.textContent);
      new MutationObserver(note).observe(place, { childList: true });
    }"""
    page.add_init_script(f"addEventListener('DOMContentLoaded', {heard})")
    page.reload()
    wait_for_answer(page, "decays faster")
    ask(page, "greeting")
    expect(page.locator(".answer")).to_have_count(3)
    expect(announcer).to_have_text("Answer: Good day.")
    assert page.evaluate("window.heard") == ["Answer: Good day."]


def test_stopping_keeps_what_was_printed_and_the_conversation_goes_on(window: Window) -> None:
    page = window.page
    ask(page, "sleep")
    page.locator(".observation.live").filter(has_text="going to sleep").wait_for()
    field, hint = page.get_by_role("textbox", name="Message"), page.locator(".composer-hint")
    expect(hint).to_have_text(WAIT)
    field.fill("written meanwhile")
    expect(hint).not_to_have_class(re.compile("urgent"))
    field.press("Enter")
    expect(hint).to_have_class(re.compile("urgent"))
    expect(page.locator("#announcer")).to_have_text(WAIT)
    assert field.input_value() == "written meanwhile"
    window.shoot("busy")
    place = page.locator(".observation .output-text").evaluate(PLACE)
    page.keyboard.press("Escape")
    page.locator(".ending.interrupted").wait_for()
    assert page.locator(".observation .output-text").evaluate(PLACE) == place
    expect(hint).to_have_text("Enter to send, Shift+Enter for a new line")
    for _ in ("while it is watched", "after it was loaded again"):
        expect(page.locator(".cell .observation")).to_contain_text("going to sleep")
        expect(page.locator(".cell .took")).to_have_text("stopped")
        window.shoot("stopped")
        page.reload()
        page.locator(".ending.interrupted").wait_for()
    ask(page, "greeting")
    wait_for_answer(page, "Good day")


def test_a_cell_that_fails_is_told_from_one_that_ran(window: Window) -> None:
    page = window.page
    ask(page, "wrong")
    wait_for_answer(page, "That failed")
    assert "NameError" in page.locator(".observation.failed").inner_text()
    assert "failed after" in page.locator(".cell.failed .took").inner_text()
    window.shoot("failed-cell")


def test_examples_are_told_from_cells_and_text_after_code_is_kept(window: Window) -> None:
    page = window.page
    ask(page, "sum")
    wait_for_answer(page, "That would print never.")
    for _ in ("while it is watched", "after it was loaded again"):
        expect(page.locator(".cell")).to_have_count(1)
        expect(page.locator(".cell .took")).to_have_text(re.compile("^ran "))
        expect(page.locator(".cell .output-text")).to_have_text("2")
        expect(page.locator(".thought .prose")).to_have_text(["I add.", "Now I explain."])
        example = page.locator(".answer .code")
        expect(example.locator(".code-head")).to_have_text("Pythonexample, not run")
        expect(example.locator("pre")).to_have_text("print('never')")
        window.shoot("example")
        page.reload()
        wait_for_answer(page, "That would print never.")


def test_undo_takes_the_turn_back_and_keeps_its_words(window: Window) -> None:
    page = window.page
    ask(page, "greeting one")
    wait_for_answer(page, "Good day")
    page.get_by_role("button", name="Undo the last turn").click()
    page.locator(".aside").filter(has_text="Turn 1 was undone").wait_for()
    assert answers(page) == []
    assert page.get_by_role("textbox", name="Message").input_value() == "greeting one"


def test_conversations_are_renamed_searched_exported_and_deleted(window: Window) -> None:
    page = window.page
    ask(page, "greeting for the list")
    wait_for_answer(page, "Good day")
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_label("Title").fill("Quite another name")
    page.get_by_role("button", name="Rename", exact=True).click()
    page.locator(".session a[aria-current]").filter(has_text="Quite another name").wait_for()
    page.keyboard.press("Control+k")
    page.keyboard.type("quite ano")
    expect(page.locator(".session")).to_have_count(1)
    page.get_by_role("button", name="More").click()
    with page.expect_download() as downloading:
        page.get_by_role("menuitem", name="Export as notebook").click()
    assert json.loads(Path(downloading.value.path()).read_text())["cells"]
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.locator(".home").wait_for()
    expect(page.locator(".session")).to_have_count(0)


def test_two_windows_show_the_same_conversation(
    window: Window, browser: "Browser", server: WebServer, tmp_path: Path
) -> None:
    ask(window.page, "greeting twice")
    wait_for_answer(window.page, "Good day")
    with open_window(browser, server.url, tmp_path) as other:
        other.page.goto(window.page.url)
        wait_for_answer(other.page, "Good day")
        ask(other.page, "greeting once more")
        for each in (window, other):
            expect(each.page.locator(".answer")).to_have_count(2)


def test_where_nobody_has_begun_a_run_the_page_says_so(window: Window, server: WebServer) -> None:
    window.page.goto(f"{server.url}#/runs")
    expect(window.page.locator(".run-list .blank")).to_contain_text("No runs yet")
    window.shoot("runs-empty")
