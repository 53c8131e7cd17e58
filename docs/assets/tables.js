// Long tables of figures: a heading sorts, and a box keeps the rows with all words that are typed. Nothing is fetched.
"use strict";

const LONG = 8; // rows from which on a table sorts, and has a box from twice as many on

/** A cell's number, µs and ms alike in ms; its text where it has none; null where it is empty. */
function valueOf(cell) {
  const text = cell.textContent.trim();
  const found = /^(-?\d+(?:\.\d+)?(?:e-?\d+)?)( µs)?(?![\d.]*[-\w])/.exec(text);
  return text === "" ? null : found ? Number(found[1]) / (found[2] ? 1000 : 1) : text;
}

/** Empty cells come last, whatever the direction. */
function compare(a, b, direction) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  return direction * order;
}

function sortBy(table, column, heading) {
  const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  const keyed = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[column]), row]);
  keyed.sort(([a], [b]) => compare(a, b, direction));
  table.tBodies[0].append(...keyed.map(([, row]) => row));
}

function addBox(table) {
  const box = document.createElement("input");
  const count = document.createElement("output");
  box.type = "search";
  box.className = "litz-filter";
  const example = table.tBodies[0].rows[0].cells[0].textContent.trim().slice(0, 20);
  box.placeholder = `Keep rows with ... such as: ${example}`;
  box.setAttribute("aria-label", "Keep the rows with all of these words");
  const show = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = ` ${shown} of ${table.tBodies[0].rows.length} rows`;
  };
  box.addEventListener("input", show);
  table.before(box, count);
  show();
}

function prepare(table) {
  if (!table.tHead || !table.tBodies[0]) return;
  const named = (heading) => ["note", "median"].includes(heading.textContent); // figures: rows of one line each
  if ([...table.tHead.rows[0].cells].some(named)) table.dataset.figures = "";
  if (table.tBodies[0].rows.length < LONG) return;
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.className = "litz-sort";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sortBy(table, column, heading));
    heading.append(button);
  });
  if (table.tBodies[0].rows.length >= 2 * LONG) addBox(table);
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("article table, main table").forEach(prepare));
