"""The report, opened in a real browser that may load nothing."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.facts import DEVICE, a_key
from tests.support.stored import ALIKE, FASTER, Shell, a_run, rows_of, store
from tuner import report, store_cache
from tuner.formatting import candidate_name, milliseconds, percent, relative
from tuner.racing.meta_analysis import judge_runs
from tuner.records import NATIVE_DEFAULT, Candidate
from tuner.store.runs import pin, save_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
HOSTILE = "<script>hacked=1</script><img src=x onerror=hacked=2>$a$ &lt;b&gt;</script>"
KEYS = (a_key(), a_key(num_envs=256), a_key(device={**DEVICE, "cpu_count": 4}))

in_a_browser = pytest.mark.browser


class Opened(NamedTuple):
    """A page, and what it said and asked for."""

    page: Page
    said: list[str]
    asked: list[str]

    def cells(self, column: int) -> list[str]:
        """Read a column of the overview, as far as it is shown."""
        cells = self.page.locator(f"#overview tbody tr:visible td:nth-child({column})")
        return cells.all_inner_texts()

    def open(self, section: str = "") -> None:
        """Open a section, or all, and wait until the charts are drawn."""
        within = f"#{section}" if section else "details"
        script = "within => document.querySelectorAll(within).forEach(one => one.open = true)"
        self.page.evaluate(script, within)
        script = "within => !document.querySelector(`${within} .chart:not(:has(svg))`)"
        self.page.wait_for_function(script, arg=within)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the machine's chromium."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def opened(browser: Browser, file: Path) -> Opened:
    """Open a page that is refused whatever it asks for beside itself."""
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    found = Opened(page, [], [])
    page.on("console", lambda message: found.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.said.append(str(error)))
    page.on("dialog", lambda dialog: found.said.append(dialog.message))
    page.on("request", lambda request: found.asked.append(request.url))
    page.route(lambda url: url != file.as_uri(), lambda route: route.abort())
    page.goto(file.as_uri())
    return found


@pytest.fixture
def filled(database: Path) -> Path:
    """Make a database: two keys of one device, one of another, one untimed and one undecided."""
    store(database, KEYS[0], *(a_run(n, choice=Candidate(4)) for n in range(1, 8)))
    store(database, KEYS[1], a_run(8, ALIKE, choice=NATIVE_DEFAULT))
    store(database, KEYS[2], a_run(9, choice=Candidate(4)))
    store_cache(database, a_key(nthread=2), {"chunk_size": 8})
    store(database, a_key(nthread=3), a_run(10, pairs=0, state="cut short"))
    return database


@pytest.fixture
def page_file(filled: Path, shell: Shell) -> Path:
    """Make its report."""
    file = filled.with_name("report.html")
    told = shell("report", "-o", file, "--database", filled)
    assert (told.code, told.err) == (0, "")
    assert told.out == f"{file}: {file.stat().st_size:,} bytes\n"
    return file


@in_a_browser
def test_it_opens_alone_and_draws_everything(browser: Browser, page_file: Path) -> None:
    found = opened(browser, page_file)
    page = found.page
    found.open()
    assert page.locator(".chart svg").count() == 9  # four keys, two each, and one comparison
    assert page.locator(".chart script").count() == 0
    assert page.locator("#state tr").count() > 10
    first = page.locator("#key-2 figure").first
    assert "chunk_size (environments per work item)" in first.locator("svg").inner_html()
    caption = first.locator("figcaption").inner_text()
    assert first.locator(".chart").get_attribute("aria-label") == caption
    assert page.evaluate("document.documentElement.scrollWidth") <= 1300
    assert found.said == []
    assert found.asked == [page_file.as_uri()]
    page.close()


@in_a_browser
def test_the_table_sorts_and_searches(browser: Browser, page_file: Path) -> None:
    found = opened(browser, page_file)
    page = found.page
    newest_first = [key[:11] for key in (KEYS[2], KEYS[1], KEYS[0])]
    assert [key for key in found.cells(1) if key in newest_first] == newest_first
    for envs in (["256", *["1024"] * 4], [*["1024"] * 4, "256"]):
        page.get_by_role("button", name="environments").click()
        assert found.cells(4) == envs
    page.get_by_role("button", name="gain").click()
    assert found.cells(8)[0] == "0.0 %"
    assert found.cells(8)[-1] == ""
    page.get_by_role("button", name="gain").click()
    assert found.cells(8)[-1] == ""
    assert page.locator("th[aria-sort=descending]").inner_text() == "gain"
    page.get_by_role("button", name="key", exact=True).click()
    assert found.cells(1) == sorted(found.cells(1))
    page.get_by_label("Search").fill("256 QUADRUPED")
    assert found.cells(1) == [KEYS[1][:11]]
    assert page.locator("#found").inner_text() == "1 of 5 keys"
    page.get_by_label("Search").fill(KEYS[0])
    assert found.cells(1) == [KEYS[0][:11]]
    page.locator("#overview a:visible").click()
    section = page.url.partition("#")[2]
    page.locator(f"#{section} .chart svg").first.wait_for()
    assert KEYS[0] in page.locator(f"#{section}").inner_text()
    assert found.said == []
    page.close()


@in_a_browser
def test_its_numbers_are_the_databases(browser: Browser, filled: Path, page_file: Path) -> None:
    found = opened(browser, page_file)
    rows = rows_of(
        filled,
        "SELECT tuning_key, chunk_size, gain, runs, samples FROM tuning_overview "
        "ORDER BY last_measured_utc DESC, tuning_key",
    )
    assert found.cells(1) == [row[0][:11] for row in rows]
    assert found.cells(7) == [candidate_name(row[1]) for row in rows]
    assert found.cells(8) == [percent(row[2]) for row in rows]
    assert found.cells(12) == [str(row[3]) for row in rows]
    assert found.cells(13) == [str(row[4] or 0) for row in rows]
    section = f"key-{[row[0] for row in rows].index(KEYS[0])}"
    found.open(section)
    verdict = judge_runs([a_run(n) for n in range(1, 8)], num_envs=1024, nthread=8)
    cells = found.page.locator(f"#{section} table td").all_inner_texts()
    told = [tuple(cells[n : n + 5]) for n in range(0, len(cells), 5)]
    assert told == [
        (
            str(e.candidate),
            milliseconds(e.milliseconds),
            relative(e.relative),
            f"{relative(e.low)} to {relative(e.high)}" if e.candidate.chunk_size else "",
            str(e.samples),
        )
        for e in verdict.estimates
    ]
    best = next(e for e in verdict.estimates if e.candidate.chunk_size == 4)
    caption = found.page.locator(f"#{section} figcaption").first.inner_text()
    ends = f"{relative(best.low)} to {relative(best.high)}"
    summary = f"choice: 4, {relative(best.relative)} (95 % interval {ends}), decided"
    assert summary in caption
    shown = sum(min(e.samples, report.MOST_SAMPLES) for e in verdict.estimates)
    told_samples = re.search(r"(\d+) of (\d+) samples shown", caption)
    assert told_samples
    assert int(told_samples[2]) == sum(e.samples for e in verdict.estimates)
    assert shown / 2 < int(told_samples[1]) <= shown
    summary_text = found.page.locator(".summary").inner_text()
    assert "5 keys: " in summary_text
    assert f"{percent(max(row[2] or 0 for row in rows))} at most" in summary_text
    rate = 1e3 * 1024 * 4 / best.milliseconds
    assert found.cells(10)[[row[0] for row in rows].index(KEYS[0])] == report.rate(rate)
    found.page.close()


@in_a_browser
def test_texts_of_the_database_are_shown_and_do_nothing(
    browser: Browser, database: Path, shell: Shell
) -> None:
    device = {**DEVICE, "cpu_model": HOSTILE}
    name = HOSTILE.replace("/", "")
    for key in (a_key(device=device), a_key(device=device, num_envs=256), HOSTILE):
        store(database, key, a_run(1, uid=f"{len(key) + key.count('a'):032x}", model_file=name))
    pin(database, a_key(device=device), 4, HOSTILE)
    file = database.with_name("report.html")
    assert shell("report", "-o", file, "--database", database).code == 0
    found = opened(browser, file)
    page = found.page
    found.open()
    assert found.cells(2) == [name] * 3
    assert f"{HOSTILE}, 8 CPUs" in found.cells(3)
    assert f"Pinned: {HOSTILE}" in page.locator("body").inner_text()
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img, .chart script, table script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1300
    assert found.said == []
    assert found.asked == [file.as_uri()]
    page.close()


@in_a_browser
def test_charts_show_hostile_names_as_they_are(
    browser: Browser, database: Path, shell: Shell
) -> None:
    store(database, a_key(device={**DEVICE, "cpu_model": HOSTILE}), a_run(1))
    store(database, a_key(), a_run(2))
    file = database.with_name("report.html")
    assert shell("report", "-o", file, "--database", database).code == 0
    found = opened(browser, file)
    found.open()
    labels = found.page.locator(".chart svg text").all_text_contents()
    assert any(HOSTILE[:40] in label for label in labels), labels
    assert found.page.evaluate("typeof hacked") == "undefined"
    assert found.said == []
    found.page.close()


@pytest.fixture
def crowded(database: Path) -> Path:
    """Make a database of 200 keys with 170 samples each."""
    costs = dict(FASTER) | {chunk: 9.0 + 0.1 * chunk for chunk in (1, 2, 6, 10, 16, 24, 48, 64)}
    for number in range(200):
        key = a_key(num_envs=256 * (1 + number % 20), device={**DEVICE, "cpu_count": 1 + number})
        save_run(database, key, a_run(number, costs, pairs=80))
    return database


def test_a_page_of_200_keys_is_small(crowded: Path, shell: Shell) -> None:
    file = crowded.with_name("report.html")
    told = shell("report", "-o", file, "--database", crowded)
    assert (told.code, told.err) == (0, "")
    assert file.stat().st_size < 2e6
    page = file.read_text("utf-8")
    assert page.count('<details id="key-') == 200
    assert f"{crowded}: 200 keys." in page
    told = shell("report", "-o", file, "--database", crowded, "--newest", 3)
    assert told.err.startswith("the 3 keys measured last of 200: ")
    assert told.err.count("\n") == 1
    page = file.read_text("utf-8")
    assert page.count('<details id="key-') == 3
    assert "200 keys, of which this page shows 3." in page


def test_filters_select_the_keys(filled: Path, shell: Shell) -> None:
    file = filled.with_name("report.html")
    filters = ("--num-envs", 1024, "--decided", "--newest", 1)
    told = shell("report", "-o", file, *filters, "--database", filled)
    assert told.code == 0
    summaries = re.findall(r"<summary>(k1_.{8}):", file.read_text("utf-8"))
    assert summaries == [a_key(nthread=2)[:11]]  # stored now, the others on a day before
    told = shell("report", "-o", file, "--key", KEYS[1][:12], "--database", filled)
    assert (told.code, told.err) == (0, "")
    assert re.findall(r"<summary>(k1_.{8}):", file.read_text("utf-8")) == [KEYS[1][:11]]


def test_the_same_database_makes_the_same_page(filled: Path, page_file: Path, shell: Shell) -> None:
    again = page_file.with_name("again.html")
    assert shell("report", "-o", again, "--database", filled).code == 0
    assert again.read_bytes() == page_file.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-o", "missing/a.html"), 1, "there is no folder missing; "),
        (("-o", "/proc/a.html"), 1, "cannot write /proc/a.html: "),
        (("-o", "a.html", "--key", "k1_ff"), 1, "no key matches"),
        (("-o", "a.html", "--key", ""), 2, "is empty"),
        (("-o", "tuning.db"), 2, "does not end in .html"),
        (("-o", "a.html", "--newest", "0"), 2, "newest"),
        ((), 2, "--output"),
    ],
)
def test_a_wrong_call_is_one_clear_line_and_leaves_nothing(
    filled: Path,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(filled.parent)
    before = sorted(filled.parent.iterdir())
    assert words in shell.refused("report", *arguments, "--database", filled, code=code)
    assert sorted(filled.parent.iterdir()) == before


def test_a_report_is_written_whole_or_not_at_all(
    filled: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = filled.with_name("report.html")
    file.write_text("before")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "jinja2", None)
        told = shell.refused("report", "-o", file, "--database", filled)
    assert "drawing needs jinja2" in told
    assert "pip install 'tuner[charts]'" in told
    assert file.read_text() == "before"
    assert [each.name for each in filled.parent.iterdir() if "partial" in each.name] == []
