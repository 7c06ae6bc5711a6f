/* A table of many rows: sorted, searched, drawn a hundred rows at a time. */

import { button, element } from "./dom.js";
import { count } from "./format.js";

const CHUNK = 100;
const collator = new Intl.Collator(undefined, { numeric: true });

/* Order of two sort keys: numbers, then texts; what is missing comes last whichever way is sorted. */
export function compare(a, b, sign) {
  const noA = a === null || a === undefined || a === "",
    noB = b === null || b === undefined || b === "";
  if (noA || noB) return noA - noB;
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * collator.compare(String(a), String(b));
}

/* Columns: { label, key(row), show(row): text or nodes, text: sorts upwards first, title }. The first is the row's head.
   `search(row)` is the text that is looked through, `detail(row)` what a press on the first cell opens below. */
export function dataTable({ label, noun, columns, search, detail, rowClass = () => null, sortBy = 0, sign = 1 }) {
  const body = element("tbody"),
    status = element("p", { class: "soft", role: "status" });
  const find = element("input", { type: "search", autocomplete: "off", placeholder: "an id" });
  const more = button(`Show ${CHUNK} more`, draw);
  const heads = columns.map((column, at) => head(column, at)),
    tools = element("div", { class: "controls" }, element("label", {}, "find", find));
  const table = element(
    "table",
    {},
    element("caption", {}, label),
    element("thead", {}, element("tr", {}, ...heads)),
    body,
  );
  const whole = element(
    "div",
    { class: "data-table" },
    tools,
    status,
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table),
    element("p", {}, more),
  );
  let rows = [],
    found = [],
    shown = 0,
    keep = () => true,
    order = { at: sortBy, sign };

  function head(column, at) {
    const press = element(
      "button",
      { type: "button", title: column.title, on: { click: () => turn(at) } },
      column.label,
    );
    return element("th", { scope: "col", class: column.text ? "text" : null, "aria-sort": "none" }, press);
  }
  function turn(at) {
    const first = columns[at].text || columns[at].rank ? 1 : -1;
    order = { at, sign: order.at === at ? -order.sign : first };
    sort();
  }
  function filter() {
    const wanted = find.value.trim().toLowerCase();
    found = rows.filter(row => keep(row) && (!wanted || search(row).toLowerCase().includes(wanted)));
    sort();
  }
  function sort() {
    const keys = new Map(found.map(row => [row, columns[order.at].key(row)]));
    found.sort((a, b) => compare(keys.get(a), keys.get(b), order.sign));
    heads.forEach((one, at) =>
      one.setAttribute("aria-sort", at !== order.at ? "none" : order.sign > 0 ? "ascending" : "descending"),
    );
    body.replaceChildren();
    shown = 0;
    draw();
  }
  function draw() {
    const next = found.slice(shown, shown + CHUNK);
    body.append(...next.map(line));
    shown += next.length;
    more.hidden = shown >= found.length;
    status.textContent =
      `${count(found.length)} ${noun}` + (shown < found.length ? `, the first ${count(shown)} drawn` : "");
  }
  function line(row) {
    const [first, ...others] = columns,
      name = element("th", { scope: "row" });
    if (detail)
      name.append(
        element(
          "button",
          {
            type: "button",
            class: "opens",
            "aria-expanded": "false",
            on: { click: event => toggle(event.currentTarget, row) },
          },
          first.show(row),
        ),
      );
    else name.append(first.show(row));
    return element(
      "tr",
      { class: rowClass(row) },
      name,
      ...others.map(column => element("td", { class: column.text ? "text" : null }, column.show(row))),
    );
  }
  function toggle(press, row) {
    const at = press.closest("tr"),
      open = press.getAttribute("aria-expanded") === "true";
    press.setAttribute("aria-expanded", String(!open));
    if (open) return at.nextSibling.remove();
    const cell = element("td", { colspan: columns.length }, element("div", { class: "detail-inside" }, detail(row)));
    at.after(element("tr", { class: "detail" }, cell));
  }

  find.addEventListener("input", filter);
  return {
    node: whole,
    tools,
    fill(given) {
      rows = given;
      filter();
    },
    keepOnly(test) {
      keep = test;
      filter();
    },
  };
}
