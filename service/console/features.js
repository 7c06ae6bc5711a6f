/* Features as they were sent and as each model was given them. */

import { element } from "./dom.js";
import { decimal } from "./format.js";

const MOST = 12;

/* Numbers or texts, the first of many. */
export function list(values) {
  if (!Array.isArray(values))
    return values === null || values === undefined
      ? "null"
      : typeof values === "object"
        ? JSON.stringify(values)
        : String(values);
  const said = values
    .slice(0, MOST)
    .map(value => (typeof value === "number" && !Number.isInteger(value) ? decimal(value, 4) : String(value)))
    .join(", ");
  return values.length > MOST ? `${said}, \u2026 ${values.length} in all` : said || "(none)";
}

/* A table of the query's features: sent, by model, and what is missing or outside of the vocabulary. */
export function featureList(request, reports) {
  const versions = Object.keys(reports),
    sent = flat(request.query ?? {});
  const names = [
    ...new Set([...Object.keys(sent), ...versions.flatMap(version => Object.keys(reports[version].encoded))]),
  ].sort();
  const missing = [...new Set(versions.flatMap(version => reports[version].missing))].sort();
  const head = element(
    "tr",
    {},
    ...["feature", "as sent", ...versions].map(text => element("th", { scope: "col", class: "text" }, text)),
  );
  const line = name =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      element("td", { class: "wide" }, Object.hasOwn(sent, name) ? list(sent[name]) : "\u2013"),
      ...versions.map(version =>
        element(
          "td",
          { class: "wide" },
          Object.hasOwn(reports[version].encoded, name) ? list(reports[version].encoded[name]) : "not read",
          ...marks(reports[version], name),
        ),
      ),
    );
  const table = element(
    "table",
    {},
    element(
      "caption",
      {},
      "Ids of their tables (1 missing, 2 outside of the vocabulary; events most recent first), floats after scaling",
    ),
    element("thead", {}, head),
    element("tbody", {}, ...names.map(line)),
  );
  const lacks = missing.length ? `Missing, so that defaults were used: ${missing.join(", ")}.` : "Nothing is missing.";
  return element(
    "div",
    {},
    element("p", { class: missing.length ? "warning" : "soft", id: "missing" }, lacks),
    element(
      "details",
      {},
      element("summary", {}, `${names.length} features, as sent and as encoded`),
      element(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Features of the request" },
        table,
      ),
    ),
  );
}

function marks(report, name) {
  const found = [
    [report.missing, "missing"],
    [report.out_of_vocabulary, "outside of the vocabulary"],
  ];
  return found
    .filter(([names]) => names.includes(name))
    .map(([, text]) => element("small", { class: "unclear marks" }, text));
}

/* Histories field by field, most recent event first, as models read them. */
function flat(query) {
  const found = Object.create(null);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && typeof value === "object" && !Array.isArray(value))
      for (const [field, values] of Object.entries(value))
        found[`${name}.${field}`] = Array.isArray(values) ? [...values].reverse() : values;
    else found[name] = value;
  }
  return found;
}

/* Encoded features of one ad: [name, values] pairs. */
export function pairs(title, entries, marked = []) {
  const cell = ([name, values]) =>
    element(
      "div",
      {},
      element("dt", {}, name),
      element(
        "dd",
        {},
        list(values),
        marked.includes(name) ? element("span", { class: "unclear" }, " not sent") : null,
      ),
    );
  return [element("b", {}, title), element("dl", { class: "features" }, ...entries.map(cell))];
}
