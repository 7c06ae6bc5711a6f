/* Every ad of an explained answer: how far it came, its scores, and how it moved between light and heavy order. */

import { element, offer } from "./dom.js";
import { pairs } from "./features.js";
import { count, decimal } from "./format.js";
import { dataTable } from "./table.js";

const STAGES = { answer: "final", survivor: "survivor", light: "light only", dropped: "dropped" };
const WHY = {
  survivors: "others were better",
  limit: "beyond the limit",
  unknown: "unknown",
  inactive: "inactive",
  status: "not active",
  takedown: "taken down",
  budget: "no budget left",
  filtered: "excluded advertiser",
  duplicate: "listed twice",
  bid: "no usable bid",
  scenario: "other scenario",
};

/* Rows of what the trace tells, then ads of the answer beyond it. */
export function rowsOf({ ads, explain }) {
  const { candidates: told } = explain,
    at = new Map(ads.ids.map((id, place) => [id, place]));
  const by = (columns, place) =>
    columns === null ? {} : Object.fromEntries(Object.entries(columns).map(([task, values]) => [task, values[place]]));
  const rows = told.ids.map((id, place) => ({
    id,
    stage: told.stages[place],
    reason: told.reasons[place],
    place: told.stages[place] === "answer" ? at.get(id) : null,
    lightRank: told.light_ranks[place],
    rank: told.ranks[place],
    lightUtility: told.light_utilities[place],
    utility: told.utilities[place],
    bid: told.bids[place],
    objective: told.objectives[place],
    light: by(told.light, place),
    heavy: by(told.heavy, place),
  }));
  const known = new Set(rows.filter(row => row.stage === "answer").map(row => row.id));
  ads.ids.forEach(
    (id, place) =>
      known.has(id) ||
      rows.push({
        id,
        stage: "answer",
        reason: null,
        place,
        lightRank: explain.light_ranks[place],
        rank: place + 1,
        lightUtility: explain.light_utilities[place],
        utility: ads.utilities[place],
        bid: explain.bids[place],
        objective: explain.objectives[place],
        light: by(ads.light, place),
        heavy: by(ads.heavy, place),
      }),
  );
  for (const row of rows) row.move = row.rank === null ? null : row.lightRank - row.rank;
  return rows;
}

export function adsTable(answer) {
  const rows = rowsOf(answer),
    omitted = answer.explain.candidates.omitted;
  const table = dataTable({
    label: "Ads of the request",
    noun: "ads",
    columns: columns(answer),
    sortBy: 3,
    search: row => row.id,
    detail: row => detail(answer, row),
    rowClass: row => (row.stage === "dropped" ? "dropped-row" : null),
  });
  const stages = element("select", {
    on: { change: () => table.keepOnly(row => stages.value === "" || row.stage === stages.value) },
  });
  offer(stages, [
    ["", `all (${count(rows.length)})`],
    ...Object.entries(STAGES).map(([key, name]) => [
      key,
      `${name} (${count(rows.filter(row => row.stage === key).length)})`,
    ]),
  ]);
  table.tools.append(element("label", {}, "stage", stages));
  table.fill(rows);
  return element(
    "div",
    { id: "ads" },
    omitted
      ? element(
          "p",
          { class: "warning" },
          `${count(omitted)} more candidates are not told of: the first 1,000 are, and all of the answer.`,
        )
      : null,
    table.node,
  );
}

function columns(answer) {
  const number = (label, key, title, digits = 3) => ({ label, key, title, show: row => decimal(key(row), digits) });
  const heads = (name, tasks) =>
    Object.keys(tasks ?? {}).map(task =>
      number(`${name} p(${task})`, row => row[name][task] ?? null, `Probability per impression, ${name} ranker`),
    );
  return [
    { label: "ad", key: row => row.id, show: row => row.id, text: true },
    {
      label: "stage",
      key: row => Object.keys(STAGES).indexOf(row.stage),
      rank: true,
      text: true,
      show: row => [STAGES[row.stage], row.reason ? element("small", {}, WHY[row.reason] ?? row.reason) : ""],
    },
    {
      label: "light rank",
      key: row => row.lightRank,
      rank: true,
      title: "Place by light utility among all that were scored",
      show: row => count(row.lightRank),
    },
    {
      label: "rank",
      key: row => row.rank,
      rank: true,
      title: "Place among the survivors in final order",
      show: row => count(row.rank),
    },
    {
      label: "moved",
      key: row => row.move,
      title: "Places won from light to final order",
      show: row => move(row.move),
    },
    number(
      "utility",
      row => row.utility,
      "Bid times heavy probability of what the objective pays for: the final order",
    ),
    number("light utility", row => row.lightUtility, "The same by the light ranker"),
    ...heads("light", answer.ads.light),
    ...heads("heavy", answer.ads.heavy),
    number("bid", row => row.bid, "From the request, else from the index"),
    { label: "objective", key: row => row.objective, text: true, show: row => row.objective ?? "\u2013" },
  ];
}

/* Places won, with an arrow. */
export function move(places) {
  if (places === null) return "\u2013";
  if (places === 0) return "=";
  const [kind, arrow, word] = places > 0 ? ["up", "\u25b2 ", "up "] : ["down", "\u25bc ", "down "];
  return element(
    "span",
    { class: kind },
    element("span", { "aria-hidden": "true" }, arrow),
    element("span", { class: "aloud" }, word),
    count(Math.abs(places)),
  );
}

function detail({ ads, explain }, row) {
  const parts = [];
  if (row.place !== null && row.place !== undefined) {
    for (const [name, logits] of [
      ["light", explain.light_logits],
      ["heavy", explain.heavy_logits ?? {}],
    ]) {
      const said = Object.entries(logits).map(([task, values]) => [`${name} ${task}`, values[row.place]]);
      if (said.length)
        parts.push(
          ...pairs(
            `Logits, ${name}`,
            said.map(([label, value]) => [label, [value]]),
          ),
        );
    }
    if (ads.explored[row.place]) parts.push(element("p", {}, "Drawn at random to explore."));
  }
  for (const [version, report] of Object.entries(explain.ads)) {
    const at = report.ids.indexOf(row.id),
      of = columns => Object.entries(columns).map(([name, values]) => [name, values[at]]);
    if (at < 0) continue;
    parts.push(...pairs(`Its features as encoded for ${version}`, of(report.encoded)));
    if (Object.keys(report.pair).length)
      parts.push(...pairs("Features of user and ad together, as encoded", of(report.pair), report.lacking));
  }
  if (parts.length === 0)
    parts.push(
      element(
        "p",
        {},
        row.stage === "dropped"
          ? `It was not scored: ${WHY[row.reason] ?? row.reason}.`
          : "It did not reach the heavy ranker; encoded features are told of the first 100 ads of the answer.",
      ),
    );
  return parts;
}
