"""The page of `fuselint report`, as data, and in a real browser where one is installed."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.page import Page, gather
from fuselint.report.html import render
from support import NORM, Ran

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
MLP = """

class MLP(nn.Module):
    def __init__(self, dims, hidden):
        super().__init__()
        self.gate = nn.Linear(dims, hidden)
        self.up = nn.Linear(dims, hidden)

    def __call__(self, x):
        return nn.silu(self.gate(x)) * self.up(x)


class Plain(nn.Module):
    def __call__(self, x):
        return x @ x
"""
EVIL = "</script><script>document.title='owned'</script>\u202e\x1b[31m"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("page") / "model.py"
    path.write_text(NORM + MLP)
    return gather([str(path)], Settings(shape={"T": 1000, "D": 1000}, chip="h200"), verify=False)


def data(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def test_it_shows_each_function_today_and_fixed(page: Page) -> None:
    functions = {f["name"]: f for f in data(render(page, "model"))["functions"]}
    assert set(functions) == {"Norm.__call__", "MLP.__call__", "Plain.__call__"}
    norm, plain = functions["Norm.__call__"], functions["Plain.__call__"]
    assert (norm["launches"], norm["launches_fixed"]) == (9, 1)
    assert norm["bytes_fixed"] == 4 * 1000 * 1000  # read and written once, in bf16
    assert norm["bytes"] == 36 * 1000 * 1000
    assert plain["bytes"] == plain["bytes_fixed"] > 0 and plain["ids"] == []


def test_it_shows_the_kernels_of_each_finding(page: Page) -> None:
    findings = {f["code"]: f for f in data(render(page, "model"))["findings"]}
    assert set(findings) == {"FUS201", "FUS301"}
    chain = findings["FUS301"]
    now, fused = chain["before"], chain["after"]
    assert [len(k["reads"]) for k in now["launches"]] == [1, 2]
    assert now["launches"][1]["reads"][0]["made"] == 0
    assert (now["bytes"], fused["bytes"]) == (5 * 2 * 1000 * 1000, 3 * 2 * 1000 * 1000)
    assert now["bytes"] - fused["bytes"] == chain["traffic"]["saved_at"]
    assert 0 < fused["seconds"] < now["seconds"] < 1
    assert now["operations"] == fused["operations"] == 3 * 1000 * 1000  # sigmoid and two products
    assert [n for n, _ in chain["source"]] == list(range(chain["line"] - 2, chain["line"] + 3))


def test_it_has_formulas_where_nothing_says_a_size(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(NORM)
    shown = data(render(gather([str(path)], Settings(chip="h200", dtype="bf16"), verify=False), "model"))
    (norm,) = shown["findings"]
    assert (norm["saves"], norm["typical"]) == ("89 %", ["D"])
    assert [m["formula"] for m in norm["after"]["launches"][0]["reads"]] == ["2*T*D", "2*D"]
    assert [f["typical"] for f in shown["functions"]] == [True]


def test_it_loads_nothing_from_elsewhere(page: Page) -> None:
    text = render(page, "model")
    assert "default-src 'none'" in text
    for attribute in re.findall(r"<[^>]*\b(?:src|href)=[\"']([^\"']*)", text.split("<script>")[0]):
        assert attribute.startswith("#")


def test_what_is_hostile_stays_text(page: Page) -> None:
    evil = replace(
        page,
        shown=tuple(replace(s, finding=replace(s.finding, message=EVIL, path=EVIL), source=EVIL) for s in page.shown),
    )
    text = render(evil, EVIL)
    assert text.count("</script>") == 4 and "\x1b" not in text and "\u202e" not in text
    assert data(text)["findings"][0]["message"] == EVIL


def test_the_command_writes_it(fuselint: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    (tmp_path / "bad.py").write_text("import mlx.core as mx\n(")
    ran = fuselint("report", "-o", "out.html", "--no-verify")
    assert ran.code == 0 and "1 finding written to out.html" in ran.err and "bad.py:2: not valid Python" in ran.err
    assert data((tmp_path / "out.html").read_text())["files"] == 2


def test_it_shows_what_verification_found(fuselint: Callable[..., Ran], tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    (tmp_path / "norm.py").write_text(NORM)
    fuselint("report", "-o", "out.html")
    [found] = data((tmp_path / "out.html").read_text())["findings"]
    assert found["verification"]["outcome"] == "passed" and found["verification"]["cases"] > 0


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def load(browser: Any, tmp_path: Path, page: Page, **options: Any) -> tuple[Any, list[str]]:
    """The page in a tab without a network, and what went wrong in it."""
    (tmp_path / "page.html").write_text(render(page, "model"), encoding="utf-8")
    context = browser.new_context(offline=True, **options)
    tab = context.new_page()
    errors: list[str] = []
    tab.on("pageerror", lambda e: errors.append(str(e)))
    tab.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("request", lambda r: errors.append(r.url) if not r.url.startswith("file:") else None)
    tab.goto((tmp_path / "page.html").as_uri())
    tab.wait_for_function("window.fuselint && window.fuselint.charts.length === 2")
    return tab, errors


@pytest.mark.slow
def test_a_click_on_a_block_opens_its_finding(browser: Any, tmp_path: Path, page: Page) -> None:
    tab, errors = load(browser, tmp_path, page, viewport={"width": 1200, "height": 900})
    for name, code in (("Norm.__call__", "FUS201"), ("MLP.__call__", "FUS301")):
        place = tab.evaluate(
            """name => {
                const chart = fuselint.charts[0];
                const of = (r) => r._data.children && r._data.children.length === 1 && r._data.children[0].f;
                const found = chart.getDatasetMeta(0).data.find((e) => {
                    const r = e.$context.raw; return r.l === 1 && of(r) && of(r).name === name; });
                const at = found.getCenterPoint();
                return {x: at.x, y: at.y};
            }""",
            name,
        )
        tab.locator("#treemap").click(position=place)
        tab.locator("details[open] > summary .code", has_text=code).wait_for(
            timeout=5000
        )  # the chart answers in a frame
        assert tab.evaluate("document.activeElement.textContent").startswith(code)
    assert tab.locator("details[open] .kernel").count() > 9
    before = tab.evaluate("fuselint.charts[0].getDatasetMeta(0).data.length")
    tab.locator("#fixed").click()
    assert tab.locator("#fixed").get_attribute("aria-pressed") == "true"
    assert tab.evaluate("fuselint.charts[0].getDatasetMeta(0).data.length") == before
    assert errors == []


@pytest.mark.slow
def test_regions_lie_under_the_roof_of_the_chip(browser: Any, tmp_path: Path, page: Page) -> None:
    tab, errors = load(browser, tmp_path, page, viewport={"width": 1200, "height": 900})
    now, fused, roof, vector = tab.evaluate(
        "fuselint.charts[1].data.datasets.map((d) => d.data.map((p) => [p.x, p.y]))"
    )
    bandwidth, peak = 4800e9, 989e12
    assert roof[1] == pytest.approx([peak / bandwidth, peak]) and roof[2][1] == peak
    assert roof[0][1] == pytest.approx(roof[0][0] * bandwidth)
    assert vector[0] == pytest.approx([67e12 / bandwidth, 67e12])
    assert sorted(x for x, _ in now) == pytest.approx([4 / 36, 3 / 10], rel=1e-3)  # FUS201 and FUS301
    assert sorted(x for x, _ in fused) == pytest.approx([3 / 6, 4 / 4], rel=1e-3)
    assert all(0 < y < x * bandwidth for x, y in (*now, *fused))
    place = tab.evaluate("(({x, y}) => ({x, y}))(fuselint.charts[1].getDatasetMeta(0).data[1].getCenterPoint())")
    code = tab.evaluate("fuselint.charts[1].data.datasets[0].data[1].f.code")
    tab.locator("#roof").click(position=place)
    tab.locator("details[open] > summary .code", has_text=code).wait_for(timeout=5000)
    assert errors == []


@pytest.mark.slow
def test_what_is_only_moved_has_no_place_under_the_roof(browser: Any, tmp_path: Path, page: Page) -> None:
    assert page.shown[0].before and page.shown[0].after
    still = [replace(side, operations=0) for side in (page.shown[0].before, page.shown[0].after)]
    gone = replace(page.shown[1], after=replace(page.shown[1].after, bytes=0, launches=()))
    shown = (replace(page.shown[0], before=still[0], after=still[1]), gone)
    tab, errors = load(browser, tmp_path, replace(page, shown=shown))
    assert tab.evaluate("fuselint.charts[1].data.datasets.slice(0, 2).map((d) => d.data.length)") == [1, 0]
    assert "1 region only moves or casts data" in tab.locator("#roof-text").text_content()
    assert errors == []


@pytest.mark.slow
def test_the_keyboard_does_all_of_it(browser: Any, tmp_path: Path, page: Page) -> None:
    tab, errors = load(browser, tmp_path, page)
    reached = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("document.activeElement.id || document.activeElement.tagName"))
        if reached[-1] == "SUMMARY" and "text" in reached:
            break
    assert {"today", "fixed", "rule", "text", "SUMMARY"} <= set(reached)
    tab.keyboard.press("Enter")
    assert tab.locator("#findings details[open] pre").count() == 1
    tab.locator("#text").fill("nothing has this")
    assert tab.locator("#count").text_content() == "0 of 2"
    tab.locator("#text").fill("norm.__call__")
    assert tab.locator("#count").text_content() == "1 of 2"
    tab.locator("#text").fill("")
    tab.locator("#rule").select_option("FUS301")
    assert tab.locator("#findings details:visible").count() == 1
    assert errors == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_on_a_phone_and_in_the_dark(browser: Any, tmp_path: Path, page: Page, scheme: str) -> None:
    tab, errors = load(browser, tmp_path, page, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    tab.evaluate("fuselint.data.findings.forEach((f) => fuselint.open(f.id))")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360

    def luminance(color: str) -> float:
        parts = [int(n) / 255 for n in re.findall(r"\d+", color)[:3]]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    paper, panel = (
        tab.evaluate(f"getComputedStyle(document.querySelector('{s}')).backgroundColor") for s in ("body", "details")
    )
    assert (luminance(paper) < 0.05) == (scheme == "dark")
    for selector, behind in (
        ("body", paper),
        (".small", paper),
        (".saves", panel),
        (".place", panel),
        (".now h3", panel),
    ):
        ink = luminance(tab.evaluate(f"getComputedStyle(document.querySelector('{selector}')).color"))
        low, high = sorted((ink, luminance(behind)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, selector  # WCAG AA
    assert errors == []


@pytest.mark.slow
def test_many_findings_stay_fluid(browser: Any, tmp_path: Path, page: Page) -> None:
    shown = [replace(s, finding=replace(s.finding, path=f"m{n}.py", id=f"{n}")) for n in range(100) for s in page.shown]
    functions = [replace(f, path=f"m{n}.py", ids=(str(n),)) for n in range(100) for f in page.functions]
    start = time.perf_counter()
    tab, errors = load(browser, tmp_path, replace(page, shown=tuple(shown), functions=tuple(functions), files=100))
    assert time.perf_counter() - start < 10  # it takes 1 s; a busy machine gets some air
    longest = tab.evaluate(
        """async () => {
            const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
            let longest = 0;
            for (const f of fuselint.data.findings.slice(0, 40)) {
                const start = performance.now();
                fuselint.open(f.id);
                await frame();
                longest = Math.max(longest, performance.now() - start);
            }
            return longest;
        }"""
    )
    assert longest < 500, longest  # it takes 30 ms
    assert tab.locator("#count").text_content() == "200 of 200" and errors == []
