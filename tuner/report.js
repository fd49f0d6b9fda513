"use strict";
// Only buttons that work alone: plotly has others that send a chart somewhere.
const buttons = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"];
const config = { responsive: true, displaylogo: false, modeBarButtons: [buttons] };

// Charts are drawn when their section is opened: hundreds at once would take a minute.
function draw(section) {
  for (const box of section.querySelectorAll(".chart > script")) {
    const chart = JSON.parse(box.textContent);
    const parent = box.parentElement;
    box.remove();
    Plotly.newPlot(parent, chart.data, chart.layout, config);
  }
}

for (const section of document.querySelectorAll("details")) {
  section.addEventListener("toggle", () => section.open && draw(section));
  if (section.open) draw(section);
}

function follow() {
  const section = document.getElementById(location.hash.slice(1));
  if (section instanceof HTMLDetailsElement) {
    section.open = true;
    section.scrollIntoView();
  }
}
addEventListener("hashchange", follow);
follow();

const table = document.getElementById("overview");
const body = table.tBodies[0];
const heads = [...table.tHead.rows[0].cells];
const numbers = new Intl.Collator(undefined, { numeric: true });

// Empty cells stay below, whichever way the table is sorted.
function sort(column) {
  const sign = heads[column].getAttribute("aria-sort") === "ascending" ? -1 : 1;
  heads.forEach((head) => head.setAttribute("aria-sort", "none"));
  heads[column].setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  const numeric = body.querySelector(`td.n:nth-child(${column + 1})`) !== null;
  const value = (row) => row.cells[column].dataset.sort;
  const compare = (a, b) => (numeric ? a - b : numbers.compare(a, b));
  const rows = [...body.rows].map((row) => [value(row), row]);
  rows.sort(([a], [b]) => (a === "") - (b === "") || sign * compare(a, b));
  body.append(...rows.map(([, row]) => row));
}
heads.forEach((head, column) => head.addEventListener("click", () => sort(column)));

const search = document.getElementById("search");
function find() {
  const words = search.value.toLowerCase().split(/\s+/);
  let found = 0;
  for (const row of body.rows) {
    const text = `${row.textContent} ${row.cells[0].dataset.sort}`.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    found += !row.hidden;
  }
  document.getElementById("found").textContent = `${found} of ${body.rows.length} ${body.rows.length === 1 ? "key" : "keys"}`;
}
search.addEventListener("input", find);
find();
