"""The report, opened in a real browser that may load nothing."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.facts import DEVICE, a_key
from tests.support.stored import ALIKE, FASTER, Shell, a_run, rows_of, store
from tuner import report, store_cache
from tuner.formatting import candidate_name, percent
from tuner.racing.meta_analysis import judge_runs
from tuner.records import NATIVE_DEFAULT, Candidate, Verdict
from tuner.store.runs import pin, save_run
from tuner.study import read_study

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

    def chart(self, section: str, number: int) -> Any:
        """Open a section, and read what one of its charts draws."""
        self.page.evaluate("id => document.getElementById(id).open = true", section)
        plots = self.page.locator(f"#{section} .js-plotly-plot .main-svg")
        plots.first.wait_for()
        script = "([id, n]) => document.querySelectorAll(`#${id} .chart`)[n].data"
        return self.page.evaluate(script, [section, number])


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
    page = browser.new_page()
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
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    charts = page.locator(".chart").count()
    assert charts == 9  # four keys with timings, two each, and one comparison
    page.wait_for_function("n => document.querySelectorAll('.main-svg .xy').length >= n", arg=9)
    assert page.locator(".chart script").count() == 0
    assert page.locator("#state tr").count() > 10
    buttons = page.locator(".modebar-btn").evaluate_all("all => all.map(b => b.dataset.title)")
    assert not [name for name in buttons if re.search("(?i)cloud|share|link|edit", name or "")]
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
    assert found.cells(7)[0] == "0.0 %"
    assert found.cells(7)[-1] == ""
    page.get_by_role("button", name="gain").click()
    assert found.cells(7)[-1] == ""
    assert page.locator("th[aria-sort=descending]").inner_text() == "gain"
    page.get_by_role("button", name="key").click()
    assert found.cells(1) == sorted(found.cells(1))
    page.get_by_label("Search").fill("256 QUADRUPED")
    assert found.cells(1) == [KEYS[1][:11]]
    assert page.locator("#found").inner_text() == "1 of 5 keys"
    page.get_by_label("Search").fill(KEYS[0])
    assert found.cells(1) == [KEYS[0][:11]]
    page.locator("#overview a:visible").click()
    section = page.url.partition("#")[2]
    page.locator(f"#{section} .main-svg").first.wait_for()
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
    assert found.cells(6) == [candidate_name(row[1]) for row in rows]
    assert found.cells(7) == [percent(row[2]) for row in rows]
    assert found.cells(10) == [str(row[3]) for row in rows]
    assert found.cells(11) == [str(row[4] or 0) for row in rows]
    section = f"key-{[row[0] for row in rows].index(KEYS[0])}"
    verdict = judge_runs([a_run(n) for n in range(1, 8)], num_envs=1024, nthread=8)
    samples, default, choice, estimates = found.chart(section, 0)
    places = {e.candidate.chunk_size or 12: e for e in verdict.estimates}
    assert estimates["x"] == [4, 8, 12, 32]
    for place, y, up, down in zip(
        estimates["x"],
        estimates["y"],
        estimates["error_y"]["array"],
        estimates["error_y"]["arrayminus"],
        strict=True,
    ):
        assert y == pytest.approx(100 * (places[place].relative - 1), abs=1e-3)
        assert y + up == pytest.approx(100 * (places[place].high - 1), abs=2e-3)
        assert y - down == pytest.approx(100 * (places[place].low - 1), abs=2e-3)
    assert (default["x"], choice["x"]) == ([12], [4])
    taken = {place: e.samples for place, e in places.items()}
    shown = {place: samples["x"].count(place) for place in taken}
    assert shown[8] == taken[8] == 7
    assert taken[4] > report.MOST_SAMPLES >= shown[4] > report.MOST_SAMPLES / 2
    told = f"{sum(shown.values())} of {sum(taken.values())} samples are shown."
    assert told in found.page.locator(f"#{section}").inner_text()
    (alone, *_) = found.chart(section, 1)
    assert alone["x"] == list(range(1, 8))
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
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.locator(".main-svg").first.wait_for()
    assert found.cells(2) == [name] * 3
    assert f"{HOSTILE}, 8 CPUs" in found.cells(3)
    assert f"Pinned: {HOSTILE}" in page.locator("body").inner_text()
    legend = page.locator(".legendtext").all_text_contents()
    assert [label for label in legend if "hacked" in label] == []  # the two differ in size alone
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("img, .chart script, table script").count() == 0
    assert found.said == []
    assert found.asked == [file.as_uri()]
    page.close()


@in_a_browser
def test_plotly_shows_hostile_names_as_they_are(
    browser: Browser, database: Path, shell: Shell
) -> None:
    store(database, a_key(device={**DEVICE, "cpu_model": HOSTILE}), a_run(1))
    store(database, a_key(), a_run(2))
    file = database.with_name("report.html")
    assert shell("report", "-o", file, "--database", database).code == 0
    found = opened(browser, file)
    found.page.locator(".legendtext").first.wait_for()
    labels = found.page.locator(".legendtext").all_text_contents()
    assert any(HOSTILE in label for label in labels), labels
    assert found.page.evaluate("typeof hacked") == "undefined"
    assert found.said == []
    found.page.close()


@pytest.fixture
def crowded(database: Path) -> Path:
    """Make a database of 200 keys with 170 samples each; what they say, the report finds out."""
    fixed = Verdict(Candidate(4), True, None, 0.1, 0.09, 0.11)
    costs = dict(FASTER) | {chunk: 9.0 + 0.1 * chunk for chunk in (1, 2, 6, 10, 16, 24, 48, 64)}
    for number in range(200):
        key = a_key(num_envs=256 * (1 + number % 20), device={**DEVICE, "cpu_count": 1 + number})
        save_run(database, key, a_run(number, costs, pairs=80), lambda *_, **__: fixed)
    return database


def test_a_page_of_200_keys_is_small(crowded: Path, shell: Shell) -> None:
    file = crowded.with_name("report.html")
    told = shell("report", "-o", file, "--database", crowded)
    assert (told.code, told.err) == (0, "")
    assert file.stat().st_size < 10e6
    page = file.read_text("utf-8")
    assert page.count('<details id="key-') == 200
    assert f"{crowded}: 200 keys.</p>" in page
    told = shell("report", "-o", file, "--database", crowded, "--newest", 3)
    assert told.err.startswith("the 3 keys measured last of 200: ")
    assert told.err.count("\n") == 1
    page = file.read_text("utf-8")
    assert page.count('<details id="key-') == 3
    assert "the 3 of 200 keys that were asked for, or measured last" in page


def test_keys_can_be_picked(filled: Path, shell: Shell) -> None:
    file = filled.with_name("report.htm")
    arguments = ("--key", KEYS[1][:12], "--key", KEYS[0])
    assert shell("report", "-o", file, *arguments, "--database", filled).code == 0
    summaries = re.findall(r"<summary>(k1_.{8})", file.read_text("utf-8"))
    assert summaries == [KEYS[1][:11], KEYS[0][:11]]


def test_the_same_database_makes_the_same_page(filled: Path, page_file: Path, shell: Shell) -> None:
    again = page_file.with_name("again.html")
    assert shell("report", "-o", again, "--database", filled).code == 0
    assert again.read_bytes() == page_file.read_bytes()


def test_the_charts_are_what_plotly_takes(filled: Path) -> None:
    from plotly.graph_objects import Figure

    studies = [read_study(filled, key) for key in KEYS]
    charts = [make(study) for make in (report.key_chart, report.history_chart) for study in studies]
    for chart in (*charts, report.comparison_chart(studies)):
        Figure(chart)  # raises for a name or a value that its schema has not


def test_data_cannot_end_the_script_element_it_stands_in() -> None:
    written = report.as_script_data({"name": HOSTILE, "comment": "<!--"})
    assert not set("<>&") & set(written)
    assert json.loads(written) == {"name": HOSTILE, "comment": "<!--"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-o", "missing/a.html"), 1, "there is no folder missing; "),
        (("-o", "/proc/a.html"), 1, "cannot write /proc/a.html: "),
        (("-o", "a.html", "--key", "k1_ff"), 1, "no key starts with 'k1_ff'"),
        (("-o", "a.html", "--key", ""), 1, "the key is empty"),
        (("-o", "tuning.db"), 2, "does not end in .html or .htm"),
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
        patched.setitem(sys.modules, "plotly.offline", None)
        told = shell.refused("report", "-o", file, "--database", filled)
    assert "pip install plotly" in told
    assert "[report]" in told
    assert file.read_text() == "before"
    assert [each.name for each in filled.parent.iterdir() if "partial" in each.name] == []
