"use strict";
const collator = new Intl.Collator(undefined, { numeric: true });

/* Order of two sort keys: numbers, then texts; what is undefined comes last whichever way is sorted. */
function compare(a, b, sign) {
  const noA = a === null || a === "", noB = b === null || b === "";
  if (noA || noB) return noA - noB;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * collator.compare(String(a), String(b));
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/* Turn a heading into a button that sorts; `sort(sign)` does it. The first press of a number sorts the highest first. */
function sortable(head, sort) {
  const button = element("button");
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  head.setAttribute("aria-sort", "none");
  button.addEventListener("click", () => {
    const now = head.getAttribute("aria-sort");
    const first = head.classList.contains("text") ? "ascending" : "descending";
    const next = now === "none" ? first : now === "ascending" ? "descending" : "ascending";
    for (const other of head.parentNode.cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", next);
    sort(next === "ascending" ? 1 : -1);
  });
}

/* The key of a cell: the number or text that it carries, else what it shows. */
function cellKey(cell) {
  const key = cell.dataset.sort;
  if (key === undefined) return cell.textContent;
  return key === "" ? null : Number(key);
}

for (const head of document.querySelectorAll("table.sorts thead th")) sortable(head, sign => {
  const body = head.closest("table").tBodies[0], at = head.cellIndex;
  body.append(...[...body.rows].sort((a, b) => compare(cellKey(a.cells[at]), cellKey(b.cells[at]), sign)));
});

/* Plots say the values nearest to where they are pointed at. */
for (const figure of document.querySelectorAll("figure")) {
  const drawing = figure.querySelector("svg"), readout = figure.querySelector(".readout");
  const dots = [...drawing.querySelectorAll("circle")];
  drawing.addEventListener("pointerdown", point);
  drawing.addEventListener("pointermove", point);
  function point(event) {
    if (!dots.length) return;
    const box = drawing.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * drawing.viewBox.baseVal.width;
    const near = dots.reduce((a, b) => Math.abs(b.cx.baseVal.value - x) < Math.abs(a.cx.baseVal.value - x) ? b : a);
    const same = dots.filter(dot => Math.abs(dot.cx.baseVal.value - near.cx.baseVal.value) < .5);
    readout.textContent = same.map(dot => dot.textContent.trim()).join("\n");
  }
}

window.addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });

unpack(document.getElementById("slice-data").textContent.trim()).then(explore);

/* The rows of all slices: JSON, deflated, in base 64. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(whole).text());
}

/* The table of all slices: filtered, sorted, a page of rows at a time. */
function explore({ strings, metrics, sets }) {
  const PAGE = 100;
  const part = id => document.getElementById(id);
  const controls = { set: part("pick-set"), stage: part("pick-stage"), head: part("pick-head"), series: part("pick-series"),
    slice: part("pick-slice"), metric: part("pick-metric"), text: part("pick-text"), only: part("pick-only") };
  const table = part("slice-table"), body = table.tBodies[0], row = table.tHead.rows[0], more = part("more"), status = part("slice-count");
  let found = [], shown = 0, order = { key: "badness", sign: -1 };

  const chosen = () => sets[Number(controls.set.value)];
  const metric = () => metrics[Number(controls.metric.value)];
  const text = (set, field, at) => strings[set[field][at]];
  /* A value and the ends of its interval, to the same number of places. */
  function texts(set, key, at) {
    const values = [set[key][at], set[key + "_low"][at], set[key + "_high"][at]];
    const places = Math.max(...values.map(value => value === null ? 0 : (String(value).split(".")[1] || "").length));
    const [value, low, high] = values.map(one => one === null ? "\u2013" : (places < 9 ? one.toFixed(places) : String(one)).replace(/-/g, "\u2212"));
    return { value, interval: values[0] === null || values[1] === null ? "" : low + " to " + high };
  }

  function fill(select, values, all) {
    const before = select.value;
    select.replaceChildren(...(all ? [new Option(all, "")] : []), ...values.map(value => new Option(value.length > 60 ? value.slice(0, 60) + "\u2026" : value, value)));
    if ([...select.options].some(option => option.value === before)) select.value = before;
  }
  function refill() {
    const set = chosen(), names = field => [...new Set(set[field])].map(at => strings[at]);
    fill(controls.stage, names("stage"), "all stages");
    fill(controls.head, names("head"), "all heads");
    fill(controls.series, names("series"));
    fill(controls.slice, names("slice").filter(name => name !== "all"), "all columns");
  }

  /* Higher is worse: the value itself, its opposite, or its distance from 1; of a difference, by its sign alone. */
  function badness(set, how, value) {
    if (value === null) return null;
    if (set.difference) return how.better === "higher" ? -value : value;
    if (how.better === "one") return value > 0 ? Math.abs(Math.log(value)) : null;
    return how.better === "higher" ? -value : value;
  }
  function key(set, at) {
    const name = order.key;
    if (name === "badness") return badness(set, metric(), set[metric().key][at]);
    if (name === "slice") return text(set, "slice", at) + "\u0000" + text(set, "value", at);
    return set[name][at];
  }

  function filter() {
    const set = chosen(), wanted = {}, bit = 1 << Number(controls.metric.value), words = controls.text.value.trim().toLowerCase();
    for (const field of ["stage", "head", "series", "slice"]) if (controls[field].value) wanted[field] = strings.indexOf(controls[field].value);
    const all = strings.indexOf("all");
    found = [];
    for (let at = 0; at < set.value.length; at++) {
      if (set.slice[at] === all) continue;
      if (Object.entries(wanted).some(([field, code]) => set[field][at] !== code)) continue;
      if (controls.only.checked && !(set.worse[at] & bit)) continue;
      if (words && !(text(set, "slice", at) + " " + text(set, "value", at)).toLowerCase().includes(words)) continue;
      found.push(at);
    }
    sort();
  }
  function sort() {
    const set = chosen(), keys = new Map(found.map(at => [at, key(set, at)]));
    found.sort((a, b) => compare(keys.get(a), keys.get(b), order.sign) || a - b);
    body.replaceChildren();
    shown = 0;
    draw();
  }

  /* Values of the whole stages, by stage, head and series. */
  function wholes(set) {
    const all = strings.indexOf("all"), found = new Map();
    set.slice.forEach((slice, at) => { if (slice === all) found.set([set.stage[at], set.head[at], set.series[at]].join(), at); });
    return at => found.get([set.stage[at], set.head[at], set.series[at]].join());
  }
  /* Where values lie in the drawing, in per cent: from the lowest to the highest of the rows found, whiskers cut there. */
  function scale(set, how) {
    const values = found.flatMap(at => [set[how.key][at], set[how.key + "_low"][at], set[how.key + "_high"][at]]).filter(value => value !== null);
    if (set.difference) values.push(0); else if (how.better === "one") values.push(1);
    values.sort((a, b) => a - b);
    const cut = share => values[Math.min(values.length - 1, Math.floor(share * values.length))];
    let low = values.length > 200 ? cut(.01) : values[0], high = values.length > 200 ? cut(.99) : values[values.length - 1];
    const log = !set.difference && low > 0 && high / low > 8, bend = value => log ? Math.log(Math.max(value, low / 2)) : value;
    [low, high] = [bend(low), bend(high)];
    return value => Math.min(100, Math.max(0, high > low ? 4 + 92 * (bend(value) - low) / (high - low) : 50));
  }

  function forest(set, how, at, whole, place) {
    const drawing = element("span", "forest" + mark(set, at)), value = set[how.key][at];
    if (value === null) return element("span", "", "\u2013");
    const low = set[how.key + "_low"][at], high = set[how.key + "_high"][at];
    const reference = set.difference ? 0 : how.better === "one" ? 1 : whole === undefined ? null : set[how.key][whole];
    const add = (name, left, width) => { const made = element("i", name); made.style.left = left + "%"; if (width !== undefined) made.style.width = width + "%"; drawing.append(made); };
    if (reference !== null) add("whole", place(reference));
    if (low !== null && high !== null) add("range", place(low), place(high) - place(low));
    add("point", place(value));
    const shown = document.createDocumentFragment();
    const said = texts(set, how.key, at);
    shown.append(drawing, element("small", "", [said.value, said.interval].filter(Boolean).join(" \u00b7 ")));
    return shown;
  }
  function mark(set, at) {
    const bit = 1 << Number(controls.metric.value);
    return set.worse[at] & bit ? " bad" : set.improved && set.improved[at] & bit ? " good" : "";
  }
  function name(set, at) {
    const head = element("th", "text"), value = element("span", "clip", text(set, "value", at));
    head.scope = "row";
    value.title = text(set, "value", at);
    if (set.predicted && set.predicted[at]) {
      const button = element("button", "opens clip", value.textContent);
      button.type = "button";
      button.title = value.title;
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => toggle(button, set, at));
      head.append(button);
    } else head.append(value);
    const context = [text(set, "slice", at), controls.stage.value ? "" : text(set, "stage", at), controls.head.value ? "" : text(set, "head", at)];
    head.append(element("small", "", context.filter(Boolean).join(" \u00b7 ")));
    return head;
  }
  /* Show or hide the reliability curve of a row below it. */
  function toggle(button, set, at) {
    const line = button.closest("tr"), open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { line.nextSibling.remove(); return; }
    const under = element("tr", "curve"), cell = element("td", "text");
    cell.colSpan = row.cells.length;
    cell.append(curve(text(set, "value", at), set.predicted[at], set.observed[at]));
    under.append(cell);
    line.after(under);
  }

  function draw() {
    const set = chosen(), how = metric(), whole = wholes(set), place = scale(set, how), lines = [];
    for (const at of found.slice(shown, shown + PAGE)) {
      const line = element("tr"), cell = element("td", "text");
      cell.append(forest(set, how, at, whole(at), place));
      line.append(name(set, at), cell, element("td", "", set.rows[at].toLocaleString()), element("td", "", set.requests[at].toLocaleString()));
      metrics.forEach((one, place) => {
        const bad = set.worse[at] & 1 << place, good = set.improved && set.improved[at] & 1 << place;
        const said = texts(set, one.key, at), shown = element("td", bad ? "bad" : good ? "good" : "", said.value);
        if (said.interval) shown.append(element("small", "", said.interval));
        line.append(shown);
      });
      lines.push(line);
    }
    body.append(...lines);
    shown += lines.length;
    more.hidden = shown >= found.length;
    status.textContent = found.length.toLocaleString() + (found.length === 1 ? " slice" : " slices") + (shown < found.length ? ", the first " + shown.toLocaleString() + " shown" : "");
    row.cells[1].firstChild.firstChild.textContent = how.label + (set.difference ? ", difference" : "");
  }

  fill(controls.set, sets.map((_, at) => String(at)));
  [...controls.set.options].forEach((option, at) => { option.textContent = sets[at].label; });
  controls.set.parentNode.hidden = sets.length < 2;
  metrics.forEach((one, at) => controls.metric.add(new Option(one.label, at)));
  refill();
  if ([...controls.stage.options].some(option => option.value === "candidates")) controls.stage.value = "candidates";
  if (controls.head.options.length > 1) controls.head.selectedIndex = 1;
  controls.set.addEventListener("change", () => { refill(); filter(); });
  for (const control of [controls.stage, controls.head, controls.series, controls.slice, controls.only]) control.addEventListener("change", filter);
  controls.metric.addEventListener("change", () => { filter(); });
  controls.text.addEventListener("input", filter);
  more.addEventListener("click", draw);
  for (const head of row.cells) sortable(head, sign => { order = { key: head.dataset.key, sign }; sort(); });
  row.cells[1].setAttribute("aria-sort", "descending");
  part("explorer").hidden = false;
  filter();
}

/* A reliability curve on logarithmic axes of whole powers of ten; bins without any event have no place there. */
function curve(title, predicted, observed) {
  const figure = document.getElementById("curve").content.cloneNode(true).firstElementChild, drawing = figure.querySelector("svg");
  const [left, top, right, bottom] = drawing.dataset.box.split(" ").map(Number);
  const [grid, label] = [drawing.querySelector(".grid"), drawing.querySelector("text")], dot = drawing.querySelector("circle");
  const points = predicted.map((x, at) => [x, observed[at]]).filter(([x, y]) => x > 0 && y > 0);
  const rates = points.flat().map(Math.log10), low = Math.floor(Math.min(...rates)), high = Math.max(low + 1, Math.ceil(Math.max(...rates)));
  const share = rate => (Math.log10(rate) - low) / (high - low);
  const x = rate => left + share(rate) * (right - left), y = rate => bottom - share(rate) * (bottom - top);
  const put = (kind, attributes, said) => {
    const made = kind.cloneNode(true);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (said !== undefined) made.textContent = said;
    drawing.append(made);
  };
  for (let power = low; points.length && power <= high; power++) {
    const rate = 10 ** power, said = String(Number(rate.toPrecision(1)));
    put(grid, { x1: left, x2: right, y1: y(rate), y2: y(rate) });
    put(grid, { x1: x(rate), x2: x(rate), y1: top, y2: bottom });
    put(label, { x: x(rate), y: bottom + 15 }, said);
    put(label, { x: left - 5, y: y(rate) + 4, "text-anchor": "end" }, said);
  }
  for (const [a, b] of points) put(dot, { cx: x(a), cy: y(b) });
  drawing.querySelector("polyline").setAttribute("points", points.map(([a, b]) => x(a) + "," + y(b)).join(" "));
  for (const one of [grid, label, dot]) one.remove();
  figure.querySelector("figcaption").textContent = "Reliability: " + title;
  return figure;
}
