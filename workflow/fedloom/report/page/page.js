"use strict";

// Curves are drawn when they come into sight: a study has hundreds, most in closed sections.
const sight = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    sight.unobserve(target);
    const { data, layout } = JSON.parse(target.previousElementSibling.textContent);
    const names = data.filter((line) => line.showlegend !== false).length;
    const across = Math.max(1, Math.floor((target.clientWidth - 70) / (layout.legend.entrywidth + 45)));
    layout.height = 300 + 25 * Math.ceil(names / across);
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // a finger scrolls the page
    Plotly.newPlot(target, data, layout, { responsive: true, displayModeBar: false });
  }
}, { rootMargin: "200px" });
document.querySelectorAll(".chart").forEach((chart) => sight.observe(chart));

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
