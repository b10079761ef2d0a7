"""The report in a real browser, at the width of a desktop and of a phone.

JavaScript sorts its tables and draws its curves, so that the HTML says little about what a reader
sees. The browser is Debian's chromium with chromium-driver, which .ci/run installs; elsewhere the
tests are skipped where they are missing, but never if FEDLOOM_CI is set.
"""

import base64
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from urllib.parse import unquote, urlparse

import pandas as pd
import pytest
from PIL import Image, ImageChops
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

import checkout
import one_process
from fedloom.common.files import write_text
from fedloom.machine.job_events import event_file
from fedloom.planning import paths
from fedloom.planning.run_labels import Run
from images_on_disk import image_folder

pytestmark = pytest.mark.slow

# titles, and names of folders, are what a person may write
SCRIPT = "<script>alert(1)</script> <b>&amp;</b> $x_{$"
IMAGE = "<img src=x onerror=alert(1)>"
# changes of the default study: fewer rounds, images and trials; and clients by domain, so that
# names of domains are on the page
CUT = {
    r"^  rounds: .*": "  rounds: 2",
    r"^  seeds: .*": "  seeds: [0, 1]",
    r"^  clients_per_round: .*": "  clients_per_round: 2",
    r"^  evaluate_every: .*": "  evaluate_every: 1",
    r"^  report: .*": "  report: {last_evaluations: 1}",
    r"^  tune: .*": "  tune: {trials: 2, rounds: 1, values: {training.lr: [0.1, 0.3]}}",
    r"^  styles:\n(    .*\n)+": "  styles: {source: folder, root: letters, domains: true}\n",
    r"^  partitions: \[four_classes\]": "  partitions: [domains]",
    r"styles/four_classes: pathological": "styles/domains: domains",
    r"^  methods: \[head_tuning.*": "  methods: [fedvpt, pep_fedpt]",
    r"^  tables: \[main, ": "  tables: [main, domains, ",
    r"{plugin: pep_fedpt}": f'{{plugin: pep_fedpt, title: "{SCRIPT}"}}',
    r"^  main: {kind: accuracy}": f'  main: {{kind: accuracy, title: "{SCRIPT}"}}',
}
# the log of a job that Snakemake starts; the processes of this test write none
LOG = f"on {IMAGE}, JOB_ID 7\nround 1\nround 2\ntook 3600.0 s\n"
LOGGED = (
    {"event": "machine", "text": f"{IMAGE}, JOB_ID 7"},
    {"event": "versions", "text": "Python 3.11.7, torch 2.9.1"},
    {"event": "took", "seconds": 3600.0, "processor": 1800.0, "megabytes": 712.0},
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WIDTHS = {"desktop": 1280, "phone": 390}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        lack = "no chromium and chromedriver here: apt-get install chromium chromium-driver"
        assert "FEDLOOM_CI" not in os.environ, lack
        pytest.skip(lack)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = checkout.copy_to(tmp_path_factory.mktemp("checkout"))
    config = (folder / "config.yaml").read_text()
    for pattern, text in CUT.items():
        config, count = re.subn(pattern, lambda _, text=text: text, config, flags=re.MULTILINE)
        assert count == 1, pattern
    (folder / "config.yaml").write_text(config)
    runs = product(["domains"], ["fedvpt", "pep_fedpt"], [0, 1], ["0002"])
    for partition, method, seed, end in [*runs, ("domains.validation", "fedvpt.0.1", 1000, "0001")]:
        run = Run("styles", partition, "micro_vit", method, seed)
        log = folder / paths.path_for(paths.log_path("train", paths.STATE), run, end=end)
        write_text(log, LOG)
        write_text(event_file(log), "\n".join(map(json.dumps, LOGGED)))
    image_folder(folder / "letters", ["ink", "chalk", IMAGE], list("abcdefghij"), count=6)
    done = subprocess.run(
        [sys.executable, one_process.__file__],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "workflow")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("report  results/report/default.html\n")
    return folder / "results/report/default.html"


@pytest.fixture(params=WIDTHS)
def page(request, browser, report):
    """Yield the report, freshly opened; no test may leave an error in the console."""
    size = {"width": WIDTHS[request.param], "height": 844, "deviceScaleFactor": 1}
    size["mobile"] = request.param == "phone"
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    browser.get(report.as_uri())
    yield browser
    assert [line["message"] for line in browser.get_log("browser")] == []


def _all(page, selector: str) -> list:
    return page.find_elements(By.CSS_SELECTOR, selector)


def _column(page, number: int) -> list[str]:
    return [cell.text for cell in _all(page, f"#table-main tbody td:nth-child({number})")]


def _draw(page, chart) -> None:
    """Move a chart into sight, and wait until it is drawn."""
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    drawn = (By.CSS_SELECTOR, ".legendtext")
    WebDriverWait(page, 20).until(lambda _: chart.find_elements(*drawn), "no curve is drawn")


def test_nothing_is_wider_than_the_screen_and_nothing_comes_from_a_network(page):
    for details in _all(page, "details"):
        page.execute_script("arguments[0].open = true", details)
    for chart in _all(page, ".chart"):
        _draw(page, chart)
    screen, width = page.execute_script(
        "return [document.documentElement.clientWidth, document.documentElement.scrollWidth]"
    )
    assert width <= screen
    loaded = page.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert [address for address in loaded if not address.startswith("data:")] == []


def test_the_main_table_is_first_with_the_numbers_of_its_file(page, report):
    numbers = pd.read_parquet(report.parents[1] / "tables/default/main.parquet")
    assert _all(page, "table")[0] == _all(page, "#table-main table")[0]
    shown = [float(text.split()[0]) for text in _column(page, 2)]
    assert shown == [round(mean, 2) for mean in numbers["participating_mean"]]


def test_a_click_on_a_heading_sorts_by_number(page):
    texts = ["9.5 ± 0.1", "-", "> 1,200", "10.25 ± 0"]
    page.execute_script(
        """const [body] = document.querySelector("#table-main table").tBodies;
        const rows = arguments[0].map((text) => {
            const row = body.rows[0].cloneNode(true);
            row.cells[1].textContent = text;
            return row;
        });
        body.replaceChildren(...rows);""",
        texts,
    )
    for order, numbers in (("descending", (2, 3, 0)), ("ascending", (0, 3, 2))):
        heading = _all(page, "#table-main th")[1]
        page.execute_script("arguments[0].click()", heading.find_element(By.TAG_NAME, "button"))
        assert heading.get_attribute("aria-sort") == order
        assert _column(page, 2) == [*(texts[number] for number in numbers), "-"]


def test_a_number_leads_to_its_runs_with_settings_trials_curve_log_and_files(page, report):
    row = next(row for row in _all(page, "#table-main tbody tr") if "FedVPT" in row.text)
    page.execute_script("arguments[0].click()", row.find_element(By.CSS_SELECTOR, "td a"))
    runs = page.find_element(By.ID, "runs/styles/domains/micro_vit/fedvpt")
    WebDriverWait(page, 10).until(lambda _: runs.get_property("open"), "the runs stay closed")
    logs = [text.text for text in runs.find_elements(By.TAG_NAME, "pre")]
    cells = runs.find_elements(By.CSS_SELECTOR, "[aria-label=Settings] td")
    settings = {key.text: value.text for key, value in zip(cells[::3], cells[1::3], strict=True)}
    trials = [
        text.text.split() for text in runs.find_elements(By.CSS_SELECTOR, "[aria-label=Trials] tr")
    ]
    (best,) = (words for words in trials if words[-1] == "chosen")
    assert best[:2] == ["lr", settings["training.lr"]]
    assert settings["plugin"] == "fedvpt" and settings["rounds"] == "2"
    assert len(logs) == 2 and all("took" in log for log in logs), "a log of every seed"
    _draw(page, runs.find_element(By.CSS_SELECTOR, ".chart"))
    names = [text.text for text in runs.find_elements(By.CSS_SELECTOR, ".legendtext")]
    assert names[:2] == ["seed 0", "seed 1"]


def test_every_link_leads_to_a_file_or_a_place_in_the_page(page, report):
    links = page.execute_script("return [...document.links].map((link) => link.href)")
    ids = page.execute_script("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(links) > 100
    for link in map(urlparse, links):
        file = Path(unquote(link.path))
        assert file.is_file(), link
        assert file != report or link.fragment in ids, link


def test_a_curve_is_hidden_by_its_name_and_shows_numbers_under_the_pointer(page):
    chart = _all(page, ".chart")[0]
    _draw(page, chart)
    names = [text.text for text in chart.find_elements(By.CSS_SELECTOR, ".legendtext")]
    assert names == ["FedVPT", SCRIPT], "names are shown as they are written"
    ticks = [text.text for text in chart.find_elements(By.CSS_SELECTOR, ".xtick")]
    assert ticks == ["1", "2"], "no tick lies between two rounds"
    page.execute_script("Plotly.Fx.hover(arguments[0], [{curveNumber: 2, pointNumber: 1}])", chart)
    assert " ± " in chart.find_element(By.CSS_SELECTOR, ".hoverlayer").text
    toggle = chart.find_elements(By.CSS_SELECTOR, ".legendtoggle")[0]
    webdriver.ActionChains(page).move_to_element(toggle).click().perform()
    visible = "return arguments[0]._fullData.map((line) => line.visible)"
    hidden = [*["legendonly"] * 3, *[True] * 3]  # a line, and the edges of its band
    WebDriverWait(page, 10).until(lambda _: page.execute_script(visible, chart) == hidden)


def test_every_figure_has_a_number_a_caption_and_an_alternative_text(page):
    captions = [
        text.text for text in _all(page, "main > figure figcaption, main > .charts figcaption")
    ]
    numbers = [int(re.match(r"Figure (\d+)\. .{20}", text)[1]) for text in captions]
    assert numbers == list(range(1, len(captions) + 1))
    images = _all(page, "main > figure > img")
    assert len(images) == 8, "seven figures and a partition"
    for image in images:
        shown, pixels = (image.get_property(name) for name in ("width", "naturalWidth"))
        assert pixels >= 1.5 * shown > 0
    assert all(len(image.get_attribute("alt")) > 20 for image in _all(page, "img"))
    assert all(chart.get_attribute("aria-label") for chart in _all(page, ".chart"))


def test_figures_have_the_pixels_of_their_files(page, report):
    file = report.parents[1] / "figures/default/points.png"
    source = page.find_element(By.CSS_SELECTOR, "#figure-points img").get_attribute("src")
    packed = base64.b64decode(source.removeprefix("data:image/webp;base64,"))
    with Image.open(io.BytesIO(packed)) as shown, Image.open(file) as drawn:
        assert ImageChops.difference(shown.convert("RGB"), drawn.convert("RGB")).getbbox() is None
    assert len(packed) < file.stat().st_size / 2


def test_the_page_begins_with_a_chart_and_sentences_made_of_numbers(page, report):
    numbers = pd.read_parquet(report.parents[1] / "tables/default/main.parquet")
    headline = _all(page, "header .headline")[0]
    (chart,) = headline.find_elements(By.TAG_NAME, "img")
    assert chart.get_property("naturalWidth") > 0, "the chart is drawn"
    assert f"{numbers['participating_mean'].max():.2f} %" in headline.text
    (link,) = headline.find_elements(By.TAG_NAME, "a")
    assert link.get_attribute("href").endswith("#table-main")


def test_clients_show_some_of_their_images_beside_the_division(page):
    strips = _all(page, "#Clients ~ figure img.samples")
    assert 2 <= len(strips) <= 8
    for strip in strips:
        assert strip.get_property("naturalWidth") > 64, "several images side by side"
        assert strip.get_attribute("alt").startswith("Images of client ")


def test_it_follows_a_dark_theme(page):
    """The contrast of text and page is above 4.5 in both themes, and a chart has their colours."""
    chart = _all(page, ".chart")[0]
    _draw(page, chart)
    drawn = "return getComputedStyle(arguments[0].querySelector('.main-svg')).backgroundColor"
    for theme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": theme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        body = "getComputedStyle(document.body)"
        text, paper = page.execute_script(f"return [{body}.color, {body}.backgroundColor]")
        assert _contrast(text, paper) > 4.5
        WebDriverWait(page, 10).until(
            lambda _, paper=paper: page.execute_script(drawn, chart) == paper, "the chart differs"
        )
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def _contrast(one: str, other: str) -> float:
    """Return the contrast of two colours such as "rgb(34, 34, 34)" by WCAG 2.1."""
    levels = []
    for colour in (one, other):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        levels.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(levels) + 0.05) / (min(levels) + 0.05)


def test_any_title_and_name_of_a_domain_is_shown_as_it_is(page):
    page.execute_script("document.getElementById('study').open = true")
    assert f"FedVPT, {SCRIPT}" in _all(page, "dl")[0].text
    assert f"“{SCRIPT}”" in _all(page, ".headline p")[0].text
    assert f"{SCRIPT}: test accuracy" in _all(page, ".caption")[0].text
    assert _column(page, 1)[1].startswith(SCRIPT)
    headings = [cell.get_attribute("textContent").strip() for cell in _all(page, "th")]
    assert IMAGE in headings
    time.sleep(0.2)  # a missing picture would load now
    sources = page.execute_script("return [...document.images].map((image) => image.src)")
    assert all(source.startswith("data:image/") for source in sources)


def test_the_hours_and_versions_of_jobs_are_those_of_their_logs(page):
    tables = _all(page, "#Costs ~ .scroll")
    rows = [row.text.split() for row in tables[0].find_elements(By.CSS_SELECTOR, "tbody tr")]
    assert rows == [[name, "5", "5.00", "2.50", "712"] for name in ("train", "all")]
    facts = _all(page, "#Costs ~ dl dd")
    assert [fact.text for fact in facts] == [
        f"{IMAGE}, JOB_ID 7 (5 jobs)",
        "Python 3.11.7, torch 2.9.1 (5 jobs)",
    ]


def test_every_file_has_the_permissions_of_the_umask(report):
    umask = os.umask(0o022)
    os.umask(umask)
    files = [path for path in (report.parent.parent).rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~umask}
