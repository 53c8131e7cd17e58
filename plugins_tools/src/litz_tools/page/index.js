// The index over the graphs of a run: rows are filtered by the search and sorted by a click on a column's title.
"use strict";
(() => {
  const table = document.getElementById("table"), box = document.getElementById("search");
  if (!table) return;
  const body = table.tBodies[0];
  const text = (row) => (row.lower ??= row.textContent.toLowerCase());
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) row.hidden = !words.every((word) => text(row).includes(word));
  });
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "ascending" : "descending");
      const by = (row) => row.cells[column].dataset.by;
      const number = [...body.rows].every((row) => by(row) !== "" && !Number.isNaN(Number(by(row))));
      const order = (a, b) => (number ? Number(by(a)) - Number(by(b)) : by(a).localeCompare(by(b)));
      body.append(...[...body.rows].sort((a, b) => (down ? order(a, b) : order(b, a))));
    });
  });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== box) { event.preventDefault(); box.focus(); }
    else if (event.key === "Escape" && document.activeElement === box) { box.value = ""; box.dispatchEvent(new Event("input")); }
  });
})();
