// Measured times, and two runs side by side. In: the blocks that `litz report` puts into a page. Out: tables.
"use strict";
(() => {
  const { data, el, link, parts, time, size, figure, portions, rates } = page;
  /** A table whose rows are several lines on a narrow screen: each cell but the first says what it is. */
  function stack(heads, body) {
    const said = (row) => { [...row.cells].forEach((cell, at) => { if (at && cell.colSpan === 1) cell.dataset.is = heads[at].textContent; }); };
    new MutationObserver((found) => found.forEach((one) => one.addedNodes.forEach(said))).observe(body, { childList: true });
    for (const row of body.rows) said(row);
    return el("table", { class: "stack" }, el("thead", {}, el("tr", {}, ...heads.filter(Boolean))), body);
  }
  const MOST = 100;

  parts.measured = (into) => {
    const found = data("measured"), { steps, timed } = data("steps");
    if (!found.us) {
      into.append(el("p", { class: "soft" }, "Nothing was measured yet. ", el("code", {}, "litz report FOLDER --run"), " runs this graph and puts the time of each step here; ",
        el("code", {}, "--profile TRACE"), " takes the times from a trace of torch.profiler."));
      return;
    }
    const known = steps.filter((step) => step.name in found.us), all = known.reduce((sum, step) => sum + found.us[step.name], 0);
    into.append(el("p", {}, `A call takes ${time(found.call_us)}; ${known.length} of ${page.count(steps.length, "step")} with a time of their own take ${time(all)}. `,
      el("span", { class: "soft" }, `${found.source}, median of ${page.count(found.calls, "call")}, ${found.date}`)));
    const rows = [...known].sort((a, b) => found.us[b.name] - found.us[a.name]).slice(0, 20);
    const heads = [el("th", {}, "step"), el("th", {}, "does"), el("th", { class: "n" }, "measured"), timed ? el("th", { class: "n" }, "estimate") : null,
      timed ? el("th", { class: "n extra" }, "of it") : null, el("th", { class: "n" }, "reaches")].filter(Boolean);
    into.append(el("div", { class: "wide" }, stack(heads, el("tbody", {}, ...rows.map((step) => el("tr", {}, el("td", { class: "name" }, link(`step/${step.name}`, step.name)), el("td", { class: "clip", title: step.title }, step.title),
      el("td", { class: "n" }, time(found.us[step.name])), timed ? el("td", { class: "n" }, time(step.cost)) : null,
      timed ? el("td", { class: "n extra" }, step.cost ? `${figure(found.us[step.name] / step.cost)} ×` : "") : null,
      el("td", { class: "n" }, rates(step, found.us[step.name]))))))));
    if (rows.length < known.length) into.append(el("p", { class: "soft" }, `The ${rows.length} of ${known.length} that take longest; the table of steps has all, and sorts.`));
  };

  const amount = (unit, value) => (value === null || value === undefined ? "" : unit === "bytes" ? size(value) : time(value));

  parts.beside = (into) => {
    const found = data("beside");
    if (!found.kind) {
      into.append(el("p", { class: "soft" }, "Nothing stands beside this graph yet. ", el("code", {}, "litz report FOLDER --beside OTHER"),
        " puts another graph there, such as the one before a change, or a trace of TorchInductor or eager."));
      return;
    }
    const [left, right] = found.titles;
    into.append(el("div", { class: "wide" }, stack([el("th", {}, ""), el("th", { class: "n" }, left), el("th", { class: "n" }, right)],
      el("tbody", {}, ...found.facts.map((row) => el("tr", {}, el("td", {}, row[0]), el("td", { class: "n" }, row[1]), el("td", { class: "n" }, row[2])))))));
    if (found.kind === "trace") {
      const side = (title, rows, unit) => {
        const body = el("tbody", {}), table = el("table", {}, el("thead", {}, el("tr", {}, el("th", { class: "n" }, "times"), el("th", {}, title), el("th", { class: "n" }, unit))), body);
        const into = el("div", { class: "wide" }, table);
        portions(rows, ([name, times, cost]) => el("tr", {}, el("td", { class: "n soft" }, figure(times)), el("td", {}, ...lines(name)), el("td", { class: "n" }, amount(unit, cost))), 40, body);
        return into;
      };
      into.append(el("div", { class: "sides" }, side(left, found.lists[0], found.unit), side(right, found.lists[1], "measured µs")));
      return;
    }
    const body = el("tbody", {}), unit = found.unit;
    into.append(el("p", { class: "soft" }, `Steps that do the same, what differs most first (${unit})`), el("div", { class: "wide" }, stack([
      el("th", {}, "does"), el("th", { class: "n" }, "here"), el("th", { class: "n" }, "there"), el("th", { class: "n" }, "here − there")], body)));
    const cell = (times, cost) => el("td", { class: "n" }, times ? el("span", { class: "soft" }, `${times} × `) : "", times ? amount(unit, cost) : "—");
    portions(found.rows, ([name, times, cost, otherTimes, otherCost]) => {
      const by = (cost || 0) - (otherCost || 0);
      return el("tr", {}, el("td", {}, ...lines(name)), cell(times, cost), cell(otherTimes, otherCost),
        el("td", { class: `n ${by < 0 ? "came" : by > 0 ? "gone" : ""}` }, by ? `${by < 0 ? "−" : "+"}${amount(unit, Math.abs(by))}` : "the same"));
    }, MOST, body);
  };
  const lines = (name) => { const [does, where] = name.split("\n"); return [does, where ? el("div", { class: "origin" }, where) : null].filter(Boolean); };

  parts.guards = (into) => {
    into.append(el("p", { class: "soft" }, "The graph is used again while these hold; dynamo traces again where one fails."));
    const body = el("tbody", {});
    into.append(el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "about"), el("th", {}, "has to hold"))), body)));
    into.reveal = (hash) => show(Number(hash.split("/")[1]));
    const show = portions(data("guards"), ([about, kind], number) => el("tr", { id: `guard/${number}`, tabindex: "-1" }, el("td", {}, el("code", {}, about)), el("td", {}, kind)), 200, body);
  };
})();
