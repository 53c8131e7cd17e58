// The page of one graph. In: the JSON blocks that data.py wrote. Each part is made when a reader comes to it.
// Addresses: #PART, #step/NAME, #line/PLACE, #decision/NUMBER, #contraction/NUMBER, #guard/NUMBER, #pass/NUMBER, #code/NAME/LINE.
// graph.js and beside.js follow in the same script and add parts of their own to `page.parts`.
"use strict";
const page = (() => {
  const blocks = {};
  /** A JSON block of the page, read once. */
  function data(name) {
    if (!(name in blocks)) blocks[name] = JSON.parse(document.getElementById(`data-${name}`).textContent);
    return blocks[name];
  }

  /** An element. props: attributes, and "on" + event handlers; children: elements and texts. */
  function el(tag, props, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(props || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
    return made;
  }
  const link = (hash, text, more) => el("a", { href: `#${hash}`, ...more }, text);

  // ------------------------------------------------------------------------------------------------ numbers for people

  const figure = (value) => String(Number(value.toPrecision(3)));
  function size(bytes) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (bytes >= 1024 && at < units.length - 1) { bytes /= 1024; at += 1; }
    return at ? `${bytes.toFixed(1)} ${units[at]}` : `${Math.round(bytes)} B`;
  }
  function time(us) {
    if (us < 1e3) return `${figure(us)} µs`;
    return us < 1e6 ? `${figure(us / 1e3)} ms` : `${figure(us / 1e6)} s`;
  }
  function flops(number) {
    const units = ["", " k", " M", " G", " T", " P"];
    let at = 0;
    while (number >= 1e3 && at < units.length - 1) { number /= 1e3; at += 1; }
    return figure(number) + units[at];
  }
  const cost = (amount) => (data("steps").timed ? time(amount) : size(amount));
  const measured = (step) => (data("measured").us || {})[step.name];
  /** "812" GB/s or TFLOP/s, with the share of what the device reaches at most where that is known. */
  function reached(rate, of) {
    const most = data("facts").peak[of];
    return figure(rate) + (most ? ` (${Math.round((100 * rate) / most)} %)` : "");
  }
  const rates = (step, us) => [step.bytes ? `${reached(step.bytes / us / 1e3, "gb_s")} GB/s` : "",
    step.flops ? `${reached(step.flops / us / 1e6, "tflops")} TFLOP/s` : ""].filter(Boolean).join(", ");
  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
  const base = (place) => place.slice(place.lastIndexOf("/") + 1);

  // ------------------------------------------------------------------------------------------- what belongs to what

  const made = {};
  /** A table that is worked out once. */
  const once = (name, make) => () => (name in made ? made[name] : (made[name] = make()));

  const stepNumbers = once("numbers", () => new Map(data("steps").steps.map((step, number) => [step.name, number])));
  const stepOfName = once("owners", () => {
    const found = new Map();
    data("steps").steps.forEach((step, number) => {
      for (const name of [step.name, ...(step.fused || []), ...(step.writes || [])]) {
        if (!found.has(name)) found.set(name, number);
      }
    });
    return found;
  });
  const names = (text) => new Set(text.match(/[A-Za-z_]\w*/g) || []);
  /** Step number -> decisions about it, as [number, text, reason]; numbered through all groups. */
  const decisionsOfStep = once("about", () => {
    const found = new Map();
    let number = 0;
    for (const group of data("decisions")) {
      for (const item of group.items) {
        const about = new Set();
        for (const name of names(item.split(":")[0])) {
          const step = stepOfName().get(name);
          if (step !== undefined) about.add(step);
        }
        for (const step of about) {
          if (!found.has(step)) found.set(step, []);
          found.get(step).push([number, `${group.chosen}: ${item}`, group.reason]);
        }
        number += 1;
      }
    }
    return found;
  });
  const codeNames = once("code", () => new Map(data("code").map((entry, number) => [entry.name, number])));
  const lineTable = once("lines", () => {
    const found = new Map();
    data("steps").steps.forEach((step, number) => {
      for (const place of step.places || []) {
        if (!found.has(place)) found.set(place, { place, cost: 0, bytes: 0, steps: [] });
        const row = found.get(place);
        row.cost += step.cost;
        row.bytes += step.bytes;
        row.steps.push(number);
      }
    });
    return [...found.values()].sort((a, b) => b.cost - a.cost);
  });

  /** A text in which the names of steps are links to them. */
  function linked(text) {
    const parts = [];
    let from = 0;
    for (const match of text.matchAll(/\b[A-Za-z_]\w*\d\w*\b/g)) {
      const step = stepOfName().get(match[0]);
      if (step === undefined) continue;
      parts.push(text.slice(from, match.index), link(`step/${data("steps").steps[step].name}`, match[0]));
      from = match.index + match[0].length;
    }
    return [...parts, text.slice(from)];
  }

  /** A folded entry whose content is made when it opens. */
  function item(id, title, make) {
    const box = el("details", { class: "item", id }, el("summary", {}, title));
    box.addEventListener("toggle", () => { if (box.open) fill(box); });
    box.make = make;
    return box;
  }
  function fill(box) {
    if (!box.make) return;
    const make = box.make;
    box.make = null;
    box.append(...[make()].flat());
  }

  /** Rows in portions: the first at once, the others when asked for. show(n): all up to row n are there. */
  function portions(rows, make, most, into) {
    let done = 0;
    const button = el("button", { type: "button" });
    const more = into.tagName === "TBODY" ? el("tr", {}, el("td", { colspan: 9 }, button)) : button;
    function next(until) {
      const end = Math.min(rows.length, until);
      const fragment = document.createDocumentFragment();
      for (; done < end; done += 1) fragment.append(make(rows[done], done));
      into.append(fragment);
      if (done < rows.length) { button.textContent = `${rows.length - done} more`; into.append(more); } else more.remove();
    }
    button.addEventListener("click", () => next(done + most));
    next(most);
    return (number) => { if (number >= done) next(number + 1); };
  }

  // --------------------------------------------------------------------------------------------------------------- parts

  const turned = new Map(); // repeat -> which of its stretches is shown

  function stepRow(number, inside) {
    const step = data("steps").steps[number];
    const timed = data("steps").timed, us = measured(step);
    const opener = el("button", { type: "button", "aria-expanded": "false", "aria-label": `details of ${step.name}` }, "▸");
    const row = el("tr", { id: `step/${step.name}`, tabindex: "-1", class: inside ? "inside" : null },
      el("td", { class: "name" }, opener, step.name),
      el("td", {}, el("div", { class: "title", title: step.title }, step.title), step.origin ? el("div", { class: "origin" }, step.origin) : null),
      timed ? el("td", { class: "n" }, step.why === undefined ? "?" : figure(step.cost)) : null,
      data("measured").us ? el("td", { class: "n" }, us === undefined ? "" : figure(us)) : null,
      data("measured").us ? el("td", { class: "n extra" }, us ? reached(step.bytes / us / 1e3, "gb_s") : "") : null,
      el("td", { class: "n" }, size(step.bytes)),
      el("td", { class: "n extra" }, step.flops ? flops(step.flops) : ""));
    opener.addEventListener("click", () => toggle(row, opener, number));
    row.opener = opener;
    return row;
  }
  function toggle(row, opener, number) {
    const open = opener.getAttribute("aria-expanded") === "true";
    opener.setAttribute("aria-expanded", String(!open));
    opener.textContent = open ? "▸" : "▾";
    if (open) row.nextSibling.remove();
    else row.after(el("tr", { class: "more" }, el("td", { colspan: row.children.length }, stepFacts(number))));
  }
  function stepFacts(number) {
    const step = data("steps").steps[number];
    const facts = el("dl", {});
    const fact = (name, ...content) => facts.append(el("dt", {}, name), el("dd", {}, ...content));
    const listed = (entries) => entries.flatMap((entry, at) => (at ? [", ", entry] : [entry]));
    fact("does", step.kind === "kernel" ? `${step.title} ${step.what}` : `${step.what} (${step.kind})`);
    if (step.why) fact("estimate", `${time(step.cost)}, between ${time(step.low)} and ${time(step.high)}: ${step.why}`);
    const us = measured(step);
    if (us !== undefined) {
      fact("measured", `${time(us)}${data("steps").timed && step.cost ? `, ${figure(us / step.cost)} times the estimate` : ""}: ${data("measured").source}`);
      if (us) fact("reaches", rates(step, us));
    }
    if (step.takes) {
      const { registers, spilled, shared, threads, occupancy } = step.takes;
      fact("takes", `${registers} registers of a thread, ${spilled ? `${size(spilled)} of them spilled to memory` : "nothing spilled"}, ${size(shared)} of shared memory and ${threads} threads of a block`
        + (occupancy ? `; occupancy ${Math.round(100 * occupancy)} %` : ""));
    }
    if (step.modules) fact("modules", step.modules.join(", "));
    for (const place of step.places || []) {
      const inside = data("steps").functions[place];
      fact("line", link(`line/${place}`, base(place)), inside ? ` in ${inside} ` : " ", el("code", {}, data("steps").lines[place] || ""));
    }
    if (step.reads) fact("reads", ...listed(step.reads.map((name) => el("span", {}, ...linked(name)))));
    if (step.writes) fact("writes", step.writes.join(", "));
    if (step.waits) fact("waits for", ...listed(step.waits.map((name) => link(`step/${name}`, name))));
    if (step.fused) fact("made of", step.fused.join(", "));
    if (codeNames().has(step.name)) fact("code", link(`code/${step.name}`, "kernel text"));
    fact("graph", link(`graph/${step.name}`, "what it reads and who reads it"));
    const about = decisionsOfStep().get(number) || [];
    if (about.length) {
      const list = el("div", {});
      portions(about, ([at, text, reason]) => el("div", {}, link(`decision/${at}`, text, { title: reason })), 12, list);
      fact("decisions", list);
    }
    return facts;
  }

  function repeatRows([start, period, times, label]) {
    const key = start;
    const steps = data("steps").steps;
    const columns = (data("steps").timed ? 5 : 4) + (data("measured").us ? 2 : 0);
    const sum = (from, to, what) => steps.slice(from, to).reduce((total, step) => total + step[what], 0);
    const word = label ? "layer" : "repeat";
    const shown = () => turned.get(key) || 0;
    let rows = [];
    const text = el("span", { "aria-live": "polite" });
    const turn = (by) => el("button", { type: "button", "aria-label": by < 0 ? `previous ${word}` : `next ${word}`,
      onclick: () => show((shown() + by + times) % times) }, by < 0 ? "‹" : "›");
    const head = el("tr", { class: "repeat" }, el("td", { colspan: columns },
      el("span", { class: "turn" }, turn(-1), " ", text, " ", turn(1)),
      ` ${label} · ${count(period, "step")} each, ${cost(sum(start, start + period * times, "cost"))} in all`));
    function show(which) {
      turned.set(key, which);
      text.textContent = `${word} ${which + 1} of ${times}`;
      for (const row of rows) {
        if (row.opener.getAttribute("aria-expanded") === "true") row.nextSibling.remove();
        row.remove();
      }
      rows = [];
      for (let at = 0; at < period; at += 1) rows.push(stepRow(start + which * period + at, true));
      head.after(...rows);
    }
    head.show = show;
    const fragment = document.createDocumentFragment();
    fragment.append(head);
    show(shown());
    shows.set(key, show);
    return fragment;
  }
  const shows = new Map(); // start of a repeat -> what shows one of its stretches

  const parts = {
    steps(into) {
      const { steps, repeats, timed } = data("steps"), known = Boolean(data("measured").us);
      const rate = (step) => (measured(step) ? step.bytes / measured(step) : -1);
      const columns = [["step", "", null, true], ["does", "", null, true], ["est. µs", "n", (step) => step.cost, timed],
        ["meas. µs", "n", (step) => measured(step) ?? -1, known], ["GB/s", "n extra", rate, known],
        ["bytes", "n", (step) => step.bytes, true], ["FLOPs", "n extra", (step) => step.flops, true]].filter((column) => column[3]);
      const heads = columns.map(([name, classes, by]) => el("th", { class: `${classes} sort`, scope: "col" },
        by || name === "step" ? el("button", { type: "button", title: by ? "the largest first" : "in the order in which they run" }, name) : name));
      const body = el("tbody", {});
      const inOrder = () => {
        let at = 0;
        for (const repeat of [...repeats, null]) {
          const until = repeat ? repeat[0] : steps.length;
          for (; at < until; at += 1) body.append(stepRow(at, false));
          if (repeat) { body.append(repeatRows(repeat)); at = repeat[0] + repeat[1] * repeat[2]; }
        }
      };
      let sorted = 0;
      const show = (column) => {
        const by = columns[column][2], down = heads[column].getAttribute("aria-sort") === "descending";
        for (const head of heads) head.removeAttribute("aria-sort");
        heads[column].setAttribute("aria-sort", by && !down ? "descending" : "ascending");
        body.replaceChildren();
        sorted = column;
        into.upTo = null;
        if (!by) { inOrder(); return; }
        const order = steps.map((step, number) => number).sort((a, b) => (down ? 1 : -1) * (by(steps[a]) - by(steps[b])) || a - b);
        const most = portions(order, (number) => stepRow(number, false), 200, body);
        into.upTo = (number) => most(order.indexOf(number));
      };
      heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => show(column)));
      into.inOrder = () => { if (sorted) show(0); };
      show(0);
      into.append(el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body)));
    },

    time(into) {
      const { steps, timed } = data("steps");
      const { spans, held, peak } = data("time");
      const end = Math.max(...spans.map(([, , start, long]) => start + long), 1e-9);
      const svg = (height, label, ...children) => {
        const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        for (const [name, value] of Object.entries({ viewBox: `0 0 1000 ${height}`, preserveAspectRatio: "none",
          height, role: "img", "aria-label": label })) made.setAttribute(name, value);
        made.append(...children);
        return made;
      };
      const shape = (tag, props) => {
        const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
        for (const [name, value] of Object.entries(props)) made.setAttribute(name, value);
        return made;
      };
      const color = (kind) => ({ kernel: "kernel", collective: "net", wait: "stall" })[kind] || "call";
      const when = (at) => (timed ? time(at) : size(1e3 * at));
      let from = 0, long_ = end; // the window that is shown: where it begins, and how long it is
      const x = (at) => Math.min(1e4, Math.max(-1e4, (1000 * (at - from)) / long_));
      // Spans of one colour that are narrower than a third of a unit are drawn as one.
      function boxesNow() {
        const boxes = [], streams = [null, null];
        for (const [number, stream, start, long] of spans) {
          if (!long || start + long < from || start > from + long_) continue;
          const last = streams[stream], own = color(steps[number].kind);
          if (last && last.own === own && long < long_ / 3000 && start - last.end < long_ / 3000) last.end = start + long;
          else boxes.push((streams[stream] = { own, stream, start, end: start + long }));
        }
        return boxes;
      }
      const all = boxesNow(), two = all.some((box) => box.stream);
      const lanes = svg(two ? 64 : 34, "when each step runs"), memory = svg(80, "memory during each step");
      const plots = held.length ? [lanes, memory] : [lanes];
      const cursors = plots.map(() => shape("line", { class: "at", y1: 0, y2: 80, x1: 0, x2: 0 }));
      const most = Math.max(...held, 1);
      function draw() {
        lanes.replaceChildren(...boxesNow().map((box) => shape("rect", { class: box.own, x: x(box.start).toFixed(2), y: box.stream ? 34 : 2,
          width: Math.max(0.3, x(box.end) - x(box.start)).toFixed(2), height: 28 })), cursors[0]);
        if (held.length) {
          const y = (bytes) => (78 - (74 * bytes) / most).toFixed(1);
          const line = held.map((bytes, number) => {
            const [, , start, long] = spans[number];
            return `L${x(start).toFixed(2)} ${y(bytes)}L${x(start + long).toFixed(2)} ${y(bytes)}`;
          });
          memory.replaceChildren(shape("path", { class: "held", d: `M${x(0).toFixed(2)} 78${line.join("")}L${x(end).toFixed(2)} 78Z` }), cursors[1]);
        }
        shown.textContent = long_ < end ? `${when(from)} to ${when(from + long_)} of ${when(end)}` : "";
        show(Number(slider.value));
      }
      function zoom(start, long) {
        long_ = Math.min(end, Math.max(long, end / 1e5));
        from = Math.min(Math.max(0, start), end - long_);
        draw();
      }
      const middle = () => { const [, , start, long] = spans[Number(slider.value)]; return start + long / 2; };
      const press = (text, label, act) => el("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
      const shown = el("span", { class: "soft", "aria-live": "polite" });
      const bar = el("span", { class: "turn" }, press("+", "zoom in on the step", () => zoom(middle() - long_ / 8, long_ / 4)), " ",
        press("−", "zoom out", () => zoom(from - 1.5 * long_, 4 * long_)), " ", press("‹", "earlier", () => zoom(from - long_ / 2, long_)), " ",
        press("›", "later", () => zoom(from + long_ / 2, long_)), " ", press("whole", "the whole timeline", () => zoom(0, end)), " ", shown);
      const slider = el("input", { type: "range", min: 0, max: steps.length - 1, value: 0, "aria-label": "step" });
      const says = el("output", {});
      const show = (number) => {
        slider.value = number;
        const [, , start, long] = spans[number], step = steps[number];
        for (const cursor of cursors) { cursor.setAttribute("x1", x(start + long / 2)); cursor.setAttribute("x2", x(start + long / 2)); }
        says.replaceChildren(link(`step/${step.name}`, step.name), ` ${step.title.slice(0, 90)} · `,
          timed ? `${time(long)} from ${time(start)} on` : size(step.bytes),
          held.length ? ` · ${size(held[number])} of memory` : "");
      };
      slider.addEventListener("input", () => show(Number(slider.value)));
      const starts = spans.map(([, , start]) => start);
      for (const plot of plots) {
        const where = (event) => { const box = plot.getBoundingClientRect(); return from + (long_ * (event.clientX - box.left)) / box.width; };
        let begun = null;
        plot.addEventListener("pointerdown", (event) => { begun = event; });
        plot.addEventListener("pointerup", (event) => {
          const [a, b] = [where(begun || event), where(event)];
          if (begun && Math.abs(event.clientX - begun.clientX) > 8) zoom(Math.min(a, b), Math.abs(a - b)); // a stretch was drawn over
          else show(Math.max(0, starts.findLastIndex((start, of) => start <= b && spans[of][3] > 0)));
          begun = null;
        });
      }
      const top = held.length ? held.indexOf(Math.max(...held)) : -1;
      const kinds = { kernel: "litz’s kernels", call: "library calls", stall: "held up by communication", net: "communication" };
      const used = new Set(all.map((box) => box.own));
      const key = Object.entries(kinds).filter(([own]) => used.has(own)).map(([own, text]) => el("span", { class: `key ${own}` }, text));
      into.append(el("p", { class: "soft" }, ...key, timed ? `${time(end)} as estimated` : "by the bytes that each step reads and writes"));
      into.append(bar, el("div", { class: "plot" }, lanes));
      if (held.length) {
        into.append(el("p", { class: "soft" }, `Memory of temporaries and outputs (and of inputs that die here): ${size(held[top])} at its highest, `,
          "during ", link(`step/${steps[top].name}`, steps[top].name), `; the plan’s own peak is ${size(peak)}`),
          el("div", { class: "plot" }, memory));
      }
      into.append(el("div", { class: "plot" }, slider, says));
      slider.value = Math.max(0, top);
      draw();
    },

    lines(into) {
      const rows = lineTable();
      const list = el("div", {});
      const show = portions(rows, (row) => item(`line/${row.place}`,
        [el("b", {}, base(row.place)), " ", el("code", {}, data("steps").lines[row.place] || ""),
          el("span", { class: "soft" }, ` ${data("steps").functions[row.place] || ""} ${cost(row.cost)}, ${count(row.steps.length, "step")}`)],
        () => {
          const steps = el("div", {});
          portions(row.steps, (number) => {
            const step = data("steps").steps[number];
            return el("div", {}, link(`step/${step.name}`, step.name), ` ${step.title} `, el("span", { class: "soft" }, cost(step.cost)));
          }, 60, steps);
          return [el("p", { class: "soft" }, row.place), steps];
        }), 200, list);
      into.append(list);
      into.reveal = (hash) => show(rows.findIndex((row) => `line/${row.place}` === hash));
    },

    contractions(into) {
      const timed = data("steps").timed;
      const show = portions(data("contractions"), (found, number) => item(`contraction/${number}`,
        [el("b", {}, found.title), " ", el("span", { class: "soft" }, found.runs)],
        () => [
          ...found.facts.map(([name, text]) => el("p", { class: "soft" }, `${name}: `, ...(name === "nodes" ? [text] : linked(text)))),
          el("p", { class: "soft" }, "steps: ", ...found.subjects.slice(0, 60).flatMap((name) => [...linked(name), " "])),
          el("div", { class: "wide" }, el("table", {},
            el("tr", {}, el("th", {}, "implementation"), timed ? el("th", { class: "n" }, "est. µs") : null, el("th", {}, ""), el("th", {}, "because")),
            ...found.ways.map(([name, us, why], at) => el("tr", {}, el("td", {}, name),
              timed ? el("td", { class: "n" }, us ? figure(us) : "") : null,
              el("td", {}, at ? el("span", { class: "soft" }, "no") : el("b", {}, "runs")), el("td", { class: "soft" }, why)))))]), 100, into);
      into.reveal = (hash) => show(Number(hash.split("/")[1]));
    },

    decisions(into) {
      let from = 0;
      const boxes = [];
      for (const group of data("decisions")) {
        const first = from;
        from += group.items.length;
        const many = group.items.length > 1 ? ` ×${group.items.length}` : "";
        const by = group.plugin && group.plugin !== "core" ? ` (${group.plugin})` : "";
        const box = item(null, [el("b", {}, group.chosen), `${many}: ${group.reason}`,
          el("span", { class: "soft" }, `${by} ${group.stage}`)], () => {
          const list = el("div", {});
          box.show = portions(group.items, (text, at) => el("div", { id: `decision/${first + at}`, tabindex: "-1", class: "wrapped" }, ...linked(text)), 100, list);
          return list;
        });
        boxes.push([first, from, box]);
        into.append(box);
      }
      into.reveal = (hash) => {
        const number = Number(hash.split("/")[1]);
        const found = boxes.find(([first, end]) => number >= first && number < end);
        if (!found) return;
        found[2].open = true;
        fill(found[2]);
        found[2].show(number - found[0]);
      };
    },

    passes(into) {
      const side = (word, lines, more, mark) => el("div", {}, el("p", { class: "soft" }, word),
        el("pre", {}, ...lines.map((line) => el("span", { class: `line ${mark}` }, line || " ")), more ? `… ${more} more` : ""));
      data("passes").forEach((pass, number) => {
        const moved = pass.removed.length + pass.added.length ? "" : "; the same lines in another order";
        into.append(item(`pass/${number}`, [el("b", {}, pass.name),
          el("span", { class: "soft" }, ` ${pass.stage}${pass.plugin === "core" ? "" : `, ${pass.plugin}`}, ${figure(pass.ms)} ms: `
            + `${pass.lines[0]} → ${pass.lines[1]} lines, −${pass.removed.length + pass.more[0]} +${pass.added.length + pass.more[1]}${moved}`)],
        () => el("div", { class: "sides" }, side("before: lines that went", pass.removed, pass.more[0], "gone"),
          side("after: lines that came", pass.added, pass.more[1], "came"))));
      });
    },

    code(into) {
      const entries = data("code");
      const chooser = el("select", { "aria-label": "text" }, ...entries.map((entry) => el("option", { value: entry.name }, entry.name)));
      const place = el("p", { class: "soft" });
      const text = el("pre", { tabindex: "0", "aria-label": "generated code" });
      const tiles = el("div", { hidden: true }), both = el("div", {}, el("div", {}, text), tiles);
      const show = (name, line) => {
        const entry = entries[codeNames().get(name) ?? 0];
        const source = entry.same ? entries[codeNames().get(entry.same)] : entry;
        chooser.value = entry.name;
        place.replaceChildren(...[entry.path, entry.same ? `the same text as ${entry.same}` : ""].filter(Boolean).join("; "),
          ...(stepNumbers().has(entry.name) ? [" ", link(`step/${entry.name}`, "its step")] : []),
          ...(source.machine ? [" ", el("a", { href: source.machine }, "its machine code (SASS)")] : []));
        text.replaceChildren(...source.text.split("\n").map((words, at) => el("span", { class: `line${at + 1 === line ? " here" : ""}`, "data-n": at + 1 },
          ...(entry.name === "wrapper" || entry.name === "schedule" ? linked(words) : [words]))));
        text.scrollTop = 0;
        tiles.hidden = !source.tiles;
        both.className = source.tiles ? "sides" : "";
        if (source.tiles) tiles.replaceChildren(el("p", { class: "soft" }, "its TileProgram: what one program of the kernel does"),
          el("pre", { tabindex: "0", "aria-label": "tile program" }, source.tiles));
        if (line) text.children[line - 1]?.scrollIntoView({ block: "center" });
      };
      chooser.addEventListener("change", () => show(chooser.value, 0));
      into.append(chooser, place, both);
      show(entries[0].name, 0);
      into.reveal = (hash) => {
        const [, name, line] = hash.split("/");
        show(name, Number(line || 0));
      };
    },
  };

  // ------------------------------------------------------------------------------------------------- going somewhere

  /** Make a part that is not there yet. */
  function make(box) {
    if (box && box.dataset.part && !box.done) {
      box.done = true;
      parts[box.dataset.part](box);
    }
    return box;
  }
  function part(name) {
    const fold = document.getElementById(name);
    if (!fold) return null;
    fold.open = true;
    return make(fold.querySelector(".lazy"));
  }
  const homes = { graph: "graph", guard: "guards", step: "steps", line: "lines", decision: "decisions", contraction: "contractions", pass: "passes", code: "code" };
  function go() {
    const hash = decodeURIComponent(location.hash.slice(1));
    if (!hash) return;
    const kind = hash.split("/")[0];
    const home = hash.includes("/") ? part(homes[kind]) : part(hash);
    for (const old of document.querySelectorAll(".here")) old.classList.remove("here");
    if (!hash.includes("/")) { document.getElementById(hash)?.scrollIntoView(); return; }
    if (!home) return;
    if (kind === "step") {
      const number = stepNumbers().get(hash.slice(5)) ?? stepOfName().get(hash.slice(5));
      if (number === undefined) return;
      home.upTo?.(number);
      for (const [start, period, times] of home.upTo ? [] : data("steps").repeats) {
        const which = Math.floor((number - start) / period);
        if (number >= start && which < times && (turned.get(start) || 0) !== which) shows.get(start)(which);
      }
      const row = document.getElementById(`step/${data("steps").steps[number].name}`);
      if (row.opener.getAttribute("aria-expanded") === "false") toggle(row, row.opener, number);
      arrive(row);
      return;
    }
    if (home.reveal) home.reveal(hash);
    if (kind === "code" || kind === "graph") { home.parentElement.scrollIntoView(); return; }
    const target = document.getElementById(hash);
    if (!target) return;
    if (target.tagName === "DETAILS") { target.open = true; fill(target); }
    arrive(target);
  }
  function arrive(target) {
    target.classList.add("here");
    target.scrollIntoView({ block: "center" });
    (target.querySelector("summary") || target).focus({ preventScroll: true });
  }
  addEventListener("hashchange", go);
  addEventListener("click", (event) => { // the same address again
    const a = event.target.closest?.("a[href^='#']");
    if (a && a.getAttribute("href") === location.hash) { event.preventDefault(); go(); }
  });

  // ------------------------------------------------------------------------------------------------------------ search

  const box = document.getElementById("search"), found = document.getElementById("found");
  /** [kind, text in small letters, what is shown, address] of all that can be found but code. */
  const corpus = once("corpus", () => {
    const rows = [];
    const add = (kind, shown, hash, more) => rows.push([kind, `${shown} ${more || ""}`.toLowerCase(), shown, hash]);
    for (const step of data("steps").steps) {
      add("steps", `${step.name} ${step.title}`, `step/${step.name}`, [step.what, step.origin, step.modules, step.fused, step.writes].join(" "));
    }
    const own = data("facts").function;
    if (own) add("functions", `${own}, which dynamo traced`, "steps");
    const functions = new Map();
    for (const row of lineTable()) {
      const inside = data("steps").functions[row.place];
      if (inside && !functions.has(inside)) functions.set(inside, row.place);
      add("lines of the model", `${base(row.place)} ${data("steps").lines[row.place] || ""}`, `line/${row.place}`, `${inside || ""} ${row.place}`);
    }
    for (const [inside, place] of functions) add("functions", `${inside} (${base(place)})`, `line/${place}`);
    data("guards").forEach(([about, kind], at) => add("guards", `${about} ${kind}`, `guard/${at}`));
    data("contractions").forEach((one, number) => add("contractions", one.title, `contraction/${number}`, [one.runs, one.facts, one.subjects].join(" ")));
    let number = 0;
    for (const group of data("decisions")) {
      for (const text of group.items) { add("decisions", `${group.chosen}: ${text}`, `decision/${number}`, `${group.reason} ${group.plugin}`); number += 1; }
    }
    data("passes").forEach((pass, at) => add("passes", pass.name, `pass/${at}`, `${pass.stage} ${pass.plugin}`));
    return rows;
  });
  const SHOWN = 8;
  function codeHits(word) {
    const hits = [];
    for (const entry of data("code")) {
      if (!entry.text) continue;
      const lower = (entry.lower ??= entry.text.toLowerCase());
      for (let at = lower.indexOf(word); at >= 0 && hits.length < 200; at = lower.indexOf(word, at + 1)) {
        const line = entry.text.slice(0, at).split("\n").length;
        const words = entry.text.slice(entry.text.lastIndexOf("\n", at) + 1).split("\n", 1)[0].trim();
        hits.push(["code", "", `${entry.name}:${line} ${words}`, `code/${entry.name}/${line}`]);
        at = lower.indexOf("\n", at);
        if (at < 0) break;
      }
    }
    return hits;
  }
  function search() {
    const words = box.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    found.hidden = !words.length;
    if (!words.length) return;
    const groups = new Map();
    const hits = corpus().filter((row) => words.every((word) => row[1].includes(word)));
    if (words.join(" ").length > 2) hits.push(...codeHits(words.join(" ")));
    for (const row of hits) {
      if (!groups.has(row[0])) groups.set(row[0], []);
      groups.get(row[0]).push(row);
    }
    found.replaceChildren(...[...groups].flatMap(([kind, rows]) => [el("h3", {}, `${kind} (${rows.length})`),
      ...rows.slice(0, SHOWN).map((row) => link(row[3], row[2], { title: row[2] }))]));
    if (!groups.size) found.replaceChildren(el("p", { class: "soft" }, "nothing found"));
  }
  let waiting = 0;
  box.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 60); });
  function leave() { box.value = ""; found.hidden = true; found.replaceChildren(); }
  found.addEventListener("click", (event) => { if (event.target.closest("a")) leave(); });
  addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName) && document.activeElement !== box;
    if (event.key === "/" && !typing && document.activeElement !== box) { event.preventDefault(); box.focus(); box.select(); }
    else if (event.key === "Escape" && !found.hidden) { leave(); box.focus(); }
    else if (event.key === "Enter" && document.activeElement === box) {
      clearTimeout(waiting);
      search();
      const first = found.querySelector("a");
      if (first) { box.blur(); first.click(); }
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !found.hidden) {
      const all = [box, ...found.querySelectorAll("a")];
      const at = all.indexOf(document.activeElement);
      if (at < 0) return;
      event.preventDefault();
      all[Math.max(0, Math.min(all.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))].focus();
    }
  });

  // ----------------------------------------------------------------------------------------------------------- begin

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); make(entry.target); }
  }, { rootMargin: "400px" });
  requestAnimationFrame(() => setTimeout(() => { // after the first paint
    for (const [name, known] of [["measured", data("measured").us], ["beside", data("beside").kind]]) document.getElementById(name).open = Boolean(known);
    for (const lazy of document.querySelectorAll(".lazy")) seen.observe(lazy);
    go();
  }));
  return { data, el, link, once, parts, stepNumbers, cost, count, figure, portions, rates, size, time };
})();
