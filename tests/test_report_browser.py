"""The report in a real browser: every entry of every category is clicked, and shows something.

JavaScript draws the report's pages, so that the HTML says little about what a reader sees. The
browser is Debian's chromium with chromium-driver, which .ci/run installs; elsewhere the tests are
skipped where they are missing, but never if FEDLOOM_CI is set.
"""

import ast
import base64
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

import checkout
from fedloom.common.checkout import ROOT
from fedloom.config.reading import read
from images_on_disk import image_folder

pytestmark = pytest.mark.slow

# titles are what a person may write
ODD = "Odd *title* |a| `b`_ c_ <b>d</b> $x_{$ </script>"
CUT = {  # of the default study: fewer rounds and images and no tuning, the same labels
    r"^  rounds: .*": "  rounds: 1",
    r"^  seeds: .*": "  seeds: [0]",
    r"^  clients_per_round: .*": "  clients_per_round: 2",
    r"^  evaluate_every: .*": "  evaluate_every: 1",
    r"^  report: .*": "  report: {last_evaluations: 1}",
    r"^  tune: .*\n": "",
    r"^  styles:\n(    .*\n)+": "  styles: {source: folder, root: letters, domains: true}\n",
    r"^  methods: \[head_tuning.*": "  methods: [fedvpt, pep_fedpt]",
    r"{plugin: pep_fedpt}": f'{{plugin: pep_fedpt, title: "{ODD}"}}',
    r"^  main: {kind: accuracy}": f'  main: {{kind: accuracy, title: "{ODD}"}}',
}
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
    "--window-size=1400,900",
)
ENTRIES = "nav table tbody tr"


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
    image_folder(folder / "letters", ["ink", "chalk", "neon"], list("abcdefghij"), count=6)
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("one_process.py")],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "workflow")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\((WARNING|ERROR)/", done.stderr), "captions are whole markup"
    return folder / "results/report/default.html"


def _open(browser: webdriver.Chrome, report: Path) -> None:
    browser.get(report.as_uri())
    _wait(browser, "nav li")
    _no_errors(browser)


def _wait(browser: webdriver.Chrome, selector: str) -> list:
    return WebDriverWait(browser, 10).until(
        lambda _: browser.find_elements(By.CSS_SELECTOR, selector), f"no {selector}"
    )


def _no_errors(browser: webdriver.Chrome) -> None:
    errors = [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert not errors


def _click(browser: webdriver.Chrome, element: WebElement) -> None:
    """Click by the browser's own event: the page moves while its styles are applied."""
    assert element.is_displayed()
    browser.execute_script("arguments[0].click()", element)


def _click_in_menu(browser: webdriver.Chrome, name: str) -> None:
    (item,) = [li for li in _wait(browser, "nav li a") if li.text.strip() == name]
    _click(browser, item)
    _no_errors(browser)


def _shown(browser: webdriver.Chrome, before: str) -> str:
    """Return the address, as data, of what the page shows beside the menu.

    Fail if that is nothing, or still what it showed before the click.
    """
    selector = "#app img[src^='data:']:not(nav img), #app iframe"
    WebDriverWait(browser, 10).until(
        lambda _: [e.get_property("src") for e in _wait(browser, selector)] != [before],
        "the page shows what it showed before the click",
    )
    (content,) = _wait(browser, selector)
    address = content.get_property("src")
    if content.tag_name == "img":
        WebDriverWait(browser, 10).until(lambda _: content.get_property("naturalWidth") > 0)
        return address
    browser.switch_to.frame(content)
    cells = [cell.text for cell in _wait(browser, "table tbody td")]
    caption = browser.find_element(By.CSS_SELECTOR, "table caption").text
    browser.switch_to.default_content()
    assert len(caption) > 20 and all(cells)
    return address


def _content(address: str) -> bytes:
    """Return what an address holds that is itself the data."""
    kind, _, data = address.removeprefix("data:").partition(",")
    return base64.b64decode(unquote(data)) if kind.endswith(";base64") else unquote_to_bytes(data)


def test_every_entry_of_the_report_shows_its_own_table_or_figure(browser, report):
    select = read(ROOT / "config.yaml")["select"]
    results = report.parent.parent
    files = {
        "Tables": {name: results / f"tables/default/{name}.html" for name in select["tables"]},
        "Figures": {name: results / f"figures/default/{name}.png" for name in select["figures"]},
        "Partitions": {
            f"{dataset}, {name}, seed 0": results / f"partitions/{dataset}/{name}/seed0.png"
            for dataset in select["datasets"]
            for name in select["partitions"]
        },
    }
    _open(browser, report)
    assert set(browser.execute_script("return Object.keys(categories)")) == files.keys()
    for category, own in files.items():
        _open(browser, report)  # on which nothing is shown yet
        shown = ""
        _click_in_menu(browser, category)
        names = [row.text.strip() for row in _wait(browser, ENTRIES)]
        assert sorted(names) == sorted(own)
        for number, name in enumerate(names):
            row = _wait(browser, ENTRIES)[number]
            show, _ = row.find_elements(By.CSS_SELECTOR, "a")
            _click(browser, show)
            shown = _shown(browser, shown)
            assert _content(shown) == own[name].read_bytes(), f"{category} > {name}"
            _no_errors(browser)
        for number, name in enumerate(names):  # the second button of a row: about the result
            row = _wait(browser, ENTRIES)[number]
            _click(browser, row.find_elements(By.CSS_SELECTOR, "a")[1])
            (text,) = _wait(browser, "nav .prose")
            assert len(text.text) > 20 and "system-message" not in text.get_attribute("innerHTML")
            print(f"{category} > {name} > about: {text.text[:60]}...")
            _no_errors(browser)
            _click_in_menu(browser, category)


def test_the_first_page_shows_the_study_and_any_title_as_it_is(browser, report):
    _open(browser, report)
    text = _wait(browser, "#app .prose")[0]
    assert f"Methods: FedVPT, {ODD}" in text.text
    assert "system-message" not in text.get_attribute("innerHTML")
    for name in ("Workflow", "Statistics", "About"):
        _click_in_menu(browser, name)


@pytest.mark.parametrize(
    ("term", "count"), [("seed", 1), ("communication", 1), ("re:tables|tokens", 5)]
)
def test_a_search_lists_what_it_finds(browser, report, term, count):
    _open(browser, report)
    browser.find_element(By.CSS_SELECTOR, "nav input").send_keys(term, Keys.ENTER)
    assert len(_wait(browser, ENTRIES)) == count
    _no_errors(browser)


def test_every_file_has_the_permissions_of_the_umask(report):
    umask = os.umask(0o022)
    os.umask(umask)
    files = [path for path in (report.parent.parent).rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~umask}


# ---- studies of any shape --------------------------------------------------------------------

RULES = (ROOT / "workflow/rules/report.smk").read_text()
CATEGORY = re.compile(r'category="(\w+)",\s*labels=(\{.*?\}),\n', re.DOTALL)
LABELS = {name: ast.literal_eval(labels) for name, labels in CATEGORY.findall(RULES)}
SHAPES = [
    {"Tables": ["a"], "Partitions": [("a", "x")]},
    {"Figures": ["a", "b."], "Partitions": [("a", "x"), ("a", "y")]},
    {"Tables": ["a-", "b1"], "Figures": ["c"], "Partitions": [("a", "x"), ("b", "x"), ("b", "y_")]},
]


def _results(shape: dict[str, list]) -> dict[str, dict]:
    """Return the results of a study by their paths, as the report's JavaScript has them."""
    results = {}
    for category, names in shape.items():
        for name in names:
            dataset, partition = name if isinstance(name, tuple) else ("", "")
            values = {"label": name, "dataset": dataset, "partition": partition, "seed": 0}
            labels = {key: text.format(**values) for key, text in LABELS[category].items()}
            path = f"{category}/{name}"
            results[path] = {"category": category, "labels": labels, "name": path}
            results[path] |= {"mime_type": "image/png", "data_uri": "data:,"}
    return results


SHOW = """
    const [shape, term] = arguments;
    window.results = shape;
    window.categories = {};
    for (const [path, result] of Object.entries(shape)) {
        const category = window.categories[result.category] ||= {Other: []};
        category.Other.push(path);
    }
    const rows = {};
    const count = () => document.querySelectorAll("nav table tbody tr").length;
    for (const category of Object.keys(window.categories)) {
        ReactDOM.flushSync(() => app.setView({navbarMode: "menu"}));
        ReactDOM.flushSync(() => app.showCategory(category));
        rows[category] = count();
    }
    ReactDOM.flushSync(() => app.setView({navbarMode: "menu"}));
    ReactDOM.flushSync(() => app.setView({navbarMode: "searchresults", searchTerm: term}));
    rows.search = count();
    return rows;
"""


@pytest.mark.parametrize("shape", SHAPES)
def test_a_study_of_any_shape_has_a_row_for_every_result(browser, report, shape):
    """Snakemake makes toggles of some labels, and then a page may be blank, or a result missing."""
    assert LABELS.keys() == {"Tables", "Figures", "Partitions"}
    _open(browser, report)
    first, *_ = results = _results(shape)
    rows = browser.execute_script(SHOW, results, f"re:^({re.escape(first)})$")
    assert rows == {"search": 1} | {category: len(names) for category, names in shape.items()}
    _no_errors(browser)
