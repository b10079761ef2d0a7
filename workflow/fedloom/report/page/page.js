"use strict";

// Plotly is compressed in the page: it is unpacked once, when the first curve comes into sight.
let unpacked;
async function unpackPlotly() {
  const text = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

// A chart has the colours of the page, light or dark.
const dark = matchMedia("(prefers-color-scheme: dark)");
function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const [text, grid, page] = ["--text", "--grid", "--page"].map((name) => style.getPropertyValue(name).trim());
  const axis = (own) => ({ ...own, gridcolor: grid, linecolor: grid });
  return {
    ...layout,
    font: { ...layout.font, color: text },
    paper_bgcolor: page,
    plot_bgcolor: page,
    hoverlabel: { bgcolor: page, font: { color: text } },
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
  };
}

// Curves are drawn when they come into sight: a study has hundreds, most in closed sections.
async function draw(chart) {
  await (unpacked ??= unpackPlotly());
  const { data, layout } = JSON.parse(chart.previousElementSibling.textContent);
  const names = data.filter((line) => line.showlegend !== false).length;
  const across = Math.max(1, Math.floor((chart.clientWidth - 70) / (layout.legend.entrywidth + 45)));
  layout.height = 300 + 25 * Math.ceil(names / across);
  // a finger scrolls the page
  if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
  await Plotly.newPlot(chart, data, themed(layout), { responsive: true, displayModeBar: false });
}
const sight = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    sight.unobserve(target);
    draw(target);
  }
}, { rootMargin: "200px" });
document.querySelectorAll(".chart").forEach((chart) => sight.observe(chart));
dark.addEventListener("change", () => document.querySelectorAll(".js-plotly-plot").forEach(draw));

// "84.35 ± 0.59", "> 1,200" and "-" as numbers; NaN of text
const number = (text) => parseFloat(text.replace(/^[<>]\s*/, "").replace(/,(?=\d{3})/g, ""));

// What is no number comes last, in either order.
function compare(one, other, sign) {
  const [a, b] = [number(one), number(other)];
  if (isNaN(a) && isNaN(b)) return sign * one.localeCompare(other);
  return isNaN(a) - isNaN(b) || sign * (a - b);
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const [body] = heading.closest("table").tBodies;
    const before = heading.getAttribute("aria-sort");
    const up = before ? before === "descending" : !heading.classList.contains("number");
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const text = (row) => row.cells[heading.cellIndex].textContent.trim();
    const rows = [...body.rows].sort((a, b) => compare(text(a), text(b), up ? 1 : -1));
    body.append(...rows);
  });
}

// A link to runs opens the section that they are in.
function open() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  target.scrollIntoView();
}
window.addEventListener("hashchange", open);
open();
