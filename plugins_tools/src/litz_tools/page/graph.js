// Graphs as pictures. In: steps with what they read and write, or the lines that a pass changed. Out: boxes in columns,
// an arrow from each producer to its reader. Address of the graph around a step: #graph/NAME.
"use strict";
(() => {
  const { data, el, link, parts, stepNumbers, cost } = page;
  const WIDE = 210, HIGH = 46, GAP = 60, EACH = 8, LEVELS = 2, MOST = 30;
  const NS = "http://www.w3.org/2000/svg";
  function shape(tag, props, ...children) {
    const made = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(props)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  /** nodes: {name, does, mark, href, column}. edges: [from, to], by number. */
  function draw(nodes, edges, label) {
    const rows = new Map(), at = nodes.map((node) => {
      const row = rows.get(node.column) || 0;
      rows.set(node.column, row + 1);
      return row;
    });
    const columns = Math.max(...nodes.map((node) => node.column)) + 1, most = Math.max(...rows.values());
    const x = (n) => nodes[n].column * (WIDE + GAP) + 4;
    const y = (n) => (at[n] + (most - rows.get(nodes[n].column)) / 2) * (HIGH + 14) + 4;
    const width = columns * (WIDE + GAP) - GAP + 8, height = most * (HIGH + 14) - 6;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label, class: "net" });
    for (const [from, to] of edges) {
      const [x1, y1, x2, y2] = [x(from) + WIDE, y(from) + HIGH / 2, x(to), y(to) + HIGH / 2], bend = GAP / 2;
      svg.append(shape("path", { class: "edge", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 5} ${y2}l-5 -4m5 4l-5 4` }));
    }
    nodes.forEach((node, n) => {
      const title = shape("title", {}, `${node.name}: ${node.full || node.does}`);
      const words = [shape("text", { x: x(n) + 8, y: y(n) + 19, class: "strong" }, short(node.name, 26)),
        shape("text", { x: x(n) + 8, y: y(n) + 36 }, short(node.does, 32))];
      const box = shape("rect", { x: x(n), y: y(n), width: WIDE, height: HIGH, rx: 6, class: `box ${node.mark || ""}` });
      svg.append(node.href ? shape("a", { href: node.href, "aria-label": `${node.name}: ${node.does}` }, title, box, ...words) : shape("g", {}, title, box, ...words));
    });
    return el("div", { class: "wide" }, svg);
  }

  const links = page.once("links", () => {
    const { steps } = data("steps"), writer = new Map(), before = steps.map(() => []), after = steps.map(() => []);
    steps.forEach((step, number) => {
      for (const from of new Set((step.reads || []).map((name) => writer.get(name)).filter((one) => one !== undefined))) {
        before[number].push(from);
        after[from].push(number);
      }
      for (const name of step.writes || []) writer.set(name, number);
    });
    return { before, after };
  });

  function around(number) {
    const { steps } = data("steps"), { before, after } = links(), column = new Map([[number, LEVELS]]);
    let left = 0;
    for (const [next, way] of [[before, -1], [after, 1]]) {
      let edge = [number];
      for (let level = 1; level <= LEVELS; level += 1) {
        const found = [...new Set(edge.flatMap((one) => next[one]))].filter((one) => !column.has(one)).sort((a, b) => a - b);
        left += Math.max(0, found.length - EACH);
        edge = found.slice(0, EACH);
        for (const one of edge) column.set(one, LEVELS + way * level);
      }
    }
    const shown = [...column.keys()].sort((a, b) => a - b), first = Math.min(...column.values());
    const place = new Map(shown.map((one, at) => [one, at]));
    const nodes = shown.map((one) => ({ name: `${steps[one].name} · ${cost(steps[one].cost)}`, does: steps[one].title, full: `${steps[one].title} ${steps[one].origin || ""}`,
      mark: `${({ kernel: "kernel", collective: "net", wait: "stall" })[steps[one].kind] || "call"}${one === number ? " focus" : ""}`,
      href: `#graph/${steps[one].name}`, column: column.get(one) - first }));
    const edges = shown.flatMap((one) => before[one].filter((from) => place.has(from) && column.get(from) < column.get(one)).map((from) => [place.get(from), place.get(one)]));
    return [draw(nodes, edges, `the steps around ${steps[number].name}`), left];
  }

  /** The operations in lines that a pass took out or put in: {name, does, reads, writes}. */
  function operations(lines) {
    const found = [];
    let last = null;
    for (const line of lines) {
      const node = /^\s*%(\w+)[^=]*= ([\w.]+)\((.*)\)/.exec(line), loop = /^\s*(?:loop|extern|template|\w+) (\w+) \[.*?\]?.*?(?:# (.*))?$/.exec(line);
      const load = /= load (\w+)\[/.exec(line), store = /^\s*store (?:\w+ )?(\w+)\[/.exec(line);
      if (node) found.push(last = { name: node[1], does: node[2].replace(/^aten\.|\.default$/g, ""), reads: new Set(node[3].match(/(?<=%)\w+/g) || []), writes: new Set([node[1]]) });
      else if (store) { if (last) last.writes.add(store[1]); }
      else if (load) { if (last) last.reads.add(load[1]); }
      else if (loop && /^\s*(loop|extern|template)\b/.test(line)) found.push(last = { name: loop[1], does: loop[2] || line.trim(), reads: new Set(), writes: new Set() });
    }
    return found;
  }
  function rewritten(lines, mark, word) {
    const all = operations(lines), nodes = all.slice(0, MOST), edges = [];
    nodes.forEach((node, to) => nodes.forEach((other, from) => {
      if (from < to && [...other.writes].some((name) => node.reads.has(name))) edges.push([from, to]);
    }));
    const level = nodes.map(() => 0);
    for (const [from, to] of edges) level[to] = Math.max(level[to], level[from] + 1); // edges lead forward
    const text = all.length > nodes.length ? `${word}: the first ${nodes.length} of ${all.length} operations` : `${word}: ${page.count(all.length, "operation")}`;
    return el("div", {}, el("p", { class: "soft" }, text),
      nodes.length ? draw(nodes.map((node, n) => ({ ...node, mark, column: level[n] })), edges, word) : null);
  }

  parts.graph = (into) => {
    const { steps } = data("steps"), passes = data("passes");
    const chooser = el("select", { "aria-label": "what is drawn" }, el("option", { value: "" }, "steps, around one of them"),
      ...passes.map((pass, number) => el("option", { value: number }, `what ${pass.name} rewrote (${pass.stage})`)));
    const says = el("p", { class: "soft", "aria-live": "polite" }), picture = el("div", {});
    let focus = steps.reduce((best, step, number) => (step.cost > steps[best].cost ? number : best), 0);
    function show() {
      if (chooser.value === "") {
        const [drawn, left] = around(focus);
        says.replaceChildren("around ", link(`step/${steps[focus].name}`, steps[focus].name), `; a box leads to the graph around it${left ? `; ${page.count(left, "step")} further left out` : ""}`);
        picture.replaceChildren(drawn);
        const middle = picture.querySelector(".focus"), wide = picture.firstChild;
        wide.scrollLeft = Number(middle.getAttribute("x")) - (wide.clientWidth - WIDE) / 2;
      } else {
        const pass = passes[Number(chooser.value)];
        says.replaceChildren(link(`pass/${chooser.value}`, pass.name), `: ${pass.lines[0]} → ${pass.lines[1]} lines`);
        picture.replaceChildren(rewritten(pass.removed, "gone", "before: what the pass took out"), rewritten(pass.added, "came", "after: what the pass put in"));
      }
    }
    chooser.addEventListener("change", show);
    into.append(chooser, says, picture);
    show();
    into.reveal = (hash) => {
      const [, kind, name] = hash.split("/");
      if (kind === "pass") chooser.value = name;
      else { chooser.value = ""; focus = stepNumbers().get(kind) ?? focus; }
      show();
    };
  };
})();
