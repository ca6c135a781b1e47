"""The report as a person sees it: in a real browser, from a file, offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import CLOSING, hostile_run, write_extreme_runs, write_long_run

from steadygrad.journal import Journal
from steadygrad.records import StepRecord
from steadygrad.reporters.html.write import write_report

Open = Callable[..., Any]
TOO_WIDE = """() => [...document.querySelectorAll("main *")].filter((part) => {
  const style = getComputedStyle(part), box = part.getBoundingClientRect();
  if (!box.width || part.closest("details:not([open]) > :not(summary)")) return false;
  const hidden = part.scrollWidth > part.clientWidth + 1 && style.overflowX === "hidden" && style.display !== "inline";
  const inScroll = part.closest(".scroll, pre, .uplot, svg");
  return hidden || (!inScroll && box.right > innerWidth + 1);
}).map((part) => part.tagName + "." + part.className)"""


def until(page: Any, condition: str) -> None:
    """Waits for a condition. Playwright's own way of waiting is refused by the page's policy, as it should be."""
    for _ in range(3000):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"never came: {condition}; in view are steps {page.evaluate('steady.viewed()')}")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (768, False), (1400, False), (1400, True)])
def test_nothing_is_cut_off_or_wider_than_the_screen(report: Path, open_page: Open, width: int, dark: bool) -> None:
    page = open_page(report, width=width, dark=dark, phone=width < 500)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(TOO_WIDE) == []
    assert page.locator("figure.chart canvas").count() == 6
    assert (
        page.locator("h1").inner_text()
        == "4 of 5,000 updates refused (loss NaN). 1 silent problem found: lost update (SY401). "
        "No update that is not finite was applied."
    )
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (light == "rgb(16, 18, 22)") is dark


def test_every_chart_and_the_heat_map_are_painted(report: Path, open_page: Open) -> None:
    page = open_page(report)
    colours = page.locator("figure.chart canvas, .heat .map canvas").evaluate_all("""found => found.map((canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const seen = new Set();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) seen.add(data.slice(i, i + 3).join());
      return seen.size;
    })""")
    assert len(colours) == 7
    assert all(count >= 4 for count in colours)


def test_hovering_tells_the_step_its_value_and_the_incident_there(report: Path, open_page: Open) -> None:
    page = open_page(report)
    plot = page.locator("[data-curve=loss] .u-over")
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 812 / 4999, box["y"] + 60)
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert "step" in tip.inner_text()
    assert (
        "incident 1, step 812: the loss is nan; matmul of finite float16 numbers left the range of float16 in layers"
        in tip.inner_text()
    )
    page.mouse.move(5, 5)
    tip.wait_for(state="hidden")
    heat = page.locator(".heat .map canvas")
    heat.scroll_into_view_if_needed()
    heat.hover(position={"x": 500, "y": 30})
    tip.wait_for(state="visible")
    assert "layers." in tip.inner_text()
    assert "norm " in tip.inner_text()


def test_dragging_zooms_every_chart_and_a_button_goes_back(report: Path, open_page: Open) -> None:
    page = open_page(report)
    assert page.evaluate("steady.viewed()") == [0, 4999]
    page.locator("[data-curve=grad_norm]").scroll_into_view_if_needed()
    box = page.locator("[data-curve=grad_norm] .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50, steps=4)
    page.mouse.up()
    until(page, "steady.viewed()[1] < 2000")
    first, last = page.evaluate("steady.viewed()")
    assert first == pytest.approx(1000, abs=60)
    assert last == pytest.approx(1500, abs=60)
    page.locator("#reset").click()
    until(page, "steady.viewed()[1] === 4999")
    assert not page.locator("#reset").is_visible()


def test_a_finger_drawn_across_a_chart_zooms_too(report: Path, open_page: Open) -> None:
    page = open_page(report, width=390, phone=True)
    page.locator("[data-curve=loss]").scroll_into_view_if_needed()
    box = page.locator("[data-curve=loss] .u-over").bounding_box()
    assert box is not None
    finger = page.context.new_cdp_session(page)

    def touch(kind: str, share: float | None = None) -> None:
        points = [] if share is None else [{"x": box["x"] + box["width"] * share, "y": box["y"] + 60}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 0.5)
    for share in (0.55, 0.6, 0.65, 0.7):
        touch("touchMove", share)
    touch("touchEnd")
    until(page, "steady.viewed()[0] > 2000 && steady.viewed()[1] < 4000")
    assert page.locator("#reset").is_visible()
    assert not page.locator("#tip").is_visible()


def test_an_incident_is_a_click_away_in_both_directions(report: Path, open_page: Open) -> None:
    page = open_page(report)
    card = page.locator("#run0-incident1")
    card.locator("summary").first.click()
    until(page, "!document.getElementById('run0-incident1').open")
    page.locator(".incidents a", has_text="1").first.click()
    until(page, "document.getElementById('run0-incident1').open")
    card.locator("button", has_text="Show in the curves").click()
    until(page, "steady.viewed()[0] > 400 && steady.viewed()[1] < 1300")
    page.locator(".incidents button", has_text="4,100").click()
    until(page, "steady.viewed()[0] > 3600 && steady.viewed()[1] < 4600")


def test_after_a_rollback_the_last_attempt_is_drawn_and_the_earlier_one_is_faint(
    tmp_path: Path, open_page: Open
) -> None:
    with Journal(tmp_path / "run") as journal:
        for place, step in enumerate([*range(30), *range(20, 40)]):
            loss = 9.0 if step >= 20 and place < 30 else 2.0
            journal.step(StepRecord(run="r", step=step, loss=loss, grad_norm=1.0, time=1.0 + place, applied=True))
    write_report([tmp_path / "run"], tmp_path / "again.html")
    page = open_page(tmp_path / "again.html")
    assert page.locator("h1").inner_text() == "All 40 updates applied."
    drawn = page.evaluate("steady.data.runs[0].curves.loss")
    assert set(drawn["mid"]) == {2.0}
    assert [line["attempt"] for line in drawn["earlier"]] == [1]
    assert "earlier attempts, rolled back or lost" in page.locator("[data-curve=loss] .legend").inner_text()
    assert "log scale" in page.locator("[data-curve=loss] figcaption").inner_text()


def test_axis_labels_are_as_large_on_a_screen_of_twice_the_pixels(report: Path, browser: Any) -> None:
    heights = []
    for ratio in (1, 2):
        context = browser.new_context(viewport={"width": 1400, "height": 900}, device_scale_factor=ratio)
        page = context.new_page()
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        drawn = page.evaluate(
            "(() => { const found = []; const real = CanvasRenderingContext2D.prototype.fillText;"
            " CanvasRenderingContext2D.prototype.fillText = function (...a) {"
            " found.push(parseFloat(this.font.match(/([0-9.]+)px/)[1]) * this.getTransform().d);"
            " return real.apply(this, a); }; steady.redrawAll(); return found; })()"
        )
        assert len(drawn) > 20
        heights.append({round(height / ratio, 2) for height in drawn})
        context.close()
    assert heights[0] == heights[1]
    assert min(heights[0]) >= 9


def test_the_theme_can_be_switched_by_hand(report: Path, open_page: Open) -> None:
    page = open_page(report)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (before, after) == ("rgb(246, 247, 249)", "rgb(16, 18, 22)")


def test_layers_can_be_opened_up_to_single_tensors(report: Path, open_page: Open) -> None:
    page = open_page(report)
    canvas = page.locator(".heat .map canvas")
    before = canvas.bounding_box()
    page.locator("button[data-level]").click()
    after = canvas.bounding_box()
    assert before is not None
    assert after is not None
    assert after["height"] > before["height"]
    assert page.locator("button[data-level]").inner_text() == "By layer"


def test_names_from_a_stranger_run_nothing(tmp_path: Path, open_page: Open) -> None:
    write_report([hostile_run(tmp_path / CLOSING.replace("/", "_"))], tmp_path / "hostile.html")
    page = open_page(tmp_path / "hostile.html")
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.querySelectorAll('[onerror], [onload]').length") == 0
    assert "owned" not in page.evaluate("[...document.title].slice(-5).join('')")
    assert CLOSING in page.locator("main").inner_text()
    page.locator(".heat .map canvas").hover(position={"x": 700, "y": 8})
    page.locator("#tip").wait_for(state="visible")
    assert page.locator("#tip *").evaluate_all("parts => parts.map((p) => p.tagName)") == ["B", "DIV"]


def test_the_policy_of_the_page_stops_a_script_that_got_in(report: Path, tmp_path: Path, browser: Any) -> None:
    """Escaping is the first wall. This is the second: a script whose hash is not listed does not run."""
    text = report.read_text(encoding="utf-8")
    planted = tmp_path / "planted.html"
    planted.write_text(text.replace("<main>", "<main><script>document.title = 'owned'</script>"), encoding="utf-8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(planted.as_uri())
    page.wait_for_selector("html[data-ready=yes]", state="attached")
    assert page.title() != "owned"
    context.close()


def test_it_prints_with_everything_opened(report: Path, open_page: Open, tmp_path: Path) -> None:
    page = open_page(report)
    closed = page.evaluate("""() => {
      dispatchEvent(new Event("beforeprint"));
      const closed = document.querySelectorAll("details:not([open])").length;
      dispatchEvent(new Event("afterprint"));
      return closed;
    }""")
    assert closed == 0
    assert page.locator("details:not([open])").count() > 0
    assert page.pdf(path=str(tmp_path / "report.pdf"), format="A4").startswith(b"%PDF")


def test_several_runs_share_the_charts(tmp_path: Path, open_page: Open) -> None:
    runs = [write_long_run(tmp_path / name, steps=400 + 100 * place, tensors=6, bad=(200,), seed=place)
            for place, name in enumerate(("one", "two", "three"))]  # fmt: skip
    write_report(runs, tmp_path / "three.html")
    for width in (390, 1400):
        page = open_page(tmp_path / "three.html", width=width, phone=width < 500)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(TOO_WIDE) == []
        assert page.locator("[data-curve=loss] .legend").inner_text().split("\n")[:3] == ["one", "two", "three"]
        assert page.locator("figure.heat").count() == 3
        assert page.evaluate("steady.viewed()") == [0, 599]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_of_hardly_any_steps_is_a_page_too(tmp_path: Path, open_page: Open, steps: int) -> None:
    write_report([write_long_run(tmp_path / "run", steps=steps, tensors=1)], tmp_path / "short.html")
    page = open_page(tmp_path / "short.html")
    applied = "The only update was applied." if steps == 1 else "All 2 updates applied."
    assert page.locator("h1").inner_text() == f"{applied} 1 silent problem found: lost update (SY401)."
    assert "applied" in page.locator("main").inner_text()


def test_runs_at_the_edges_of_what_can_happen_are_drawn_too(tmp_path: Path, open_page: Open) -> None:
    runs = write_extreme_runs(tmp_path / "runs")
    for run in runs[:2]:  # nothing finite, nothing above zero; the others are drawn together below
        write_report([run], tmp_path / f"{run.name}.html")
        page = open_page(tmp_path / f"{run.name}.html", width=800)
        assert page.locator("figure.chart canvas").count() >= 4
        page.evaluate("steady.view(3, 9); steady.view(null); steady.resizeAll()")
    write_report(runs, tmp_path / "all.html")
    page = open_page(tmp_path / "all.html")
    assert page.locator(".side > article").count() == len(runs)
    assert page.evaluate(TOO_WIDE) == []
