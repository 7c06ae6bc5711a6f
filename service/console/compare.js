/* Panel: the same request ranked by what serves and by another release that the store keeps. */

import { move, rowsOf } from "./ads.js";
import { ask } from "./api.js";
import { alone, button, element, offer, say, tile } from "./dom.js";
import { age, count, decimal, percent, signed } from "./format.js";
import { requestPicker } from "./picker.js";
import { dataTable } from "./table.js";

export function comparePanel(section) {
  const status = element("div", { role: "status" }),
    result = element("div"),
    others = element("select", { id: "compare-with" });
  const picker = requestPicker("compare", list),
    go = button("Compare", event => alone(event.currentTarget, compare), { class: "plain strong", id: "compare-go" });
  section.append(
    element(
      "p",
      { class: "soft" },
      "The other release is loaded for this answer, on the engines of the one that serves, and let go again: a large index takes a while.",
    ),
    picker.node,
    element("div", { class: "controls" }, element("label", {}, "with the release", others)),
    element("p", {}, go),
    status,
    result,
  );
  let scenarios = [];

  async function show() {
    try {
      ({ scenarios } = await ask("admin/console/releases"));
      await picker.show();
    } catch (problem) {
      say(status, "fault", problem.message);
    }
  }
  function list(scenario) {
    const one = scenarios.find(found => found.scenario === scenario);
    const kept = (one?.releases ?? []).filter(release => !release.is_serving && release.state !== "pruned");
    offer(
      others,
      kept.map(release => [release.release_id, `${release.release_id}, ${age(release.age_s)} old`]),
    );
    go.disabled = kept.length === 0;
    if (kept.length) say(status, "", "");
    else
      say(
        status,
        "warning",
        one ? `The store keeps no other release of ${scenario}.` : "Choose or paste a request of one scenario.",
      );
  }
  async function compare() {
    say(status, "warning", "Loading the other release and ranking twice\u2026");
    try {
      const answers = await ask("admin/console/rank", {
        body: `{"request": ${picker.read().text}, "against": ${JSON.stringify(others.value)}}`,
      });
      result.replaceChildren(...shown(answers));
      say(status, "done", `Ranked by both; the other release took ${decimal(answers.against.load_ms)} ms to load.`);
    } catch (problem) {
      result.replaceChildren();
      say(status, "fault", problem.message);
    }
  }
  return { show };
}

function shown({ serving, against }) {
  const [a, b] = [serving.answer, against.answer],
    [rowsA, rowsB] = [rowsOf(a), rowsOf(b)],
    columns = scores(a.ads, b.ads),
    rows = joined(rowsA, rowsB, columns);
  const name = one => Object.values(one.releases).join(", "),
    versions = one =>
      Object.values(one.answer.release)
        .map(each => [each.two_tower, each.heavy, each.index].filter(Boolean).join(" \u00b7 "))
        .join("; ");
  const degraded = [a, b]
    .map(one => one.degraded)
    .filter(Boolean)
    .map(one =>
      element(
        "p",
        { class: "fault" },
        `One answer is in light order, since its heavy stage was ${one.reason}: ${one.detail}`,
      ),
    );
  const most = Math.max(a.ads.ids.length, b.ads.ids.length),
    firsts = [10, 50].filter(k => k < most);
  return [
    ...degraded,
    element(
      "div",
      { class: "tiles" },
      tile("serves", name(serving), versions(serving)),
      tile("compared with", name(against), versions(against)),
      ...firsts.map(k =>
        tile(`shared of the first ${k}`, percent(shared(best(rowsA, "rank", k), best(rowsB, "rank", k)))),
      ),
      tile(
        "shared of all",
        percent(shared(a.ads.ids, b.ads.ids)),
        `${count(a.ads.ids.length)} and ${count(b.ads.ids.length)} ads`,
      ),
      tile("shared of the light first 10", percent(shared(best(rowsA, "lightRank", 10), best(rowsB, "lightRank", 10)))),
      tile("places moved", decimal(distance(rows.map(row => row.move))), "on average, of ads in both"),
      ...columns.map(column =>
        tile(
          `${column.label} differs by`,
          decimal(distance(rows.map(row => row.differences[column.label])), 2),
          "on average, of ads in both",
        ),
      ),
    ),
    table(rows, columns),
  ];
}

/* The mean of what there is, whichever sign it has. */
function distance(values) {
  const known = values.filter(value => value !== null);
  return known.length ? known.reduce((sum, value) => sum + Math.abs(value), 0) / known.length : null;
}
const best = (rows, key, k) => rows.filter(row => row[key] !== null && row[key] <= k).map(row => row.id);
function shared(first, second) {
  const most = Math.max(first.length, second.length),
    known = new Set(first);
  return most ? second.filter(id => known.has(id)).length / most : null;
}

/* The probabilities that both answers have: { label, of(row) }. */
function scores(a, b) {
  const named = (ranker, first, second) =>
    Object.keys(first ?? {})
      .filter(task => task in (second ?? {}))
      .map(task => ({ label: `${ranker} p(${task})`, of: row => row?.[ranker][task] ?? null }));
  return [...named("light", a.light, b.light), ...named("heavy", a.heavy, b.heavy)];
}

/* A row an ad of either answer; differences are of the other release from what serves. */
function joined(rowsA, rowsB, columns) {
  const [first, second] = [rowsA, rowsB].map(
    rows => new Map(rows.filter(row => row.stage === "answer").map(row => [row.id, row])),
  );
  const less = (x, y) => (x === null || y === null ? null : y - x);
  return [...new Set([...first.keys(), ...second.keys()])].map(id => {
    const [one, other] = [first.get(id), second.get(id)],
      both = of => [of(one), of(other)];
    return {
      id,
      ranks: both(row => row?.rank ?? null),
      lights: both(row => row?.lightRank ?? null),
      utilities: both(row => row?.utility ?? null),
      move: one && other ? one.rank - other.rank : null,
      values: Object.fromEntries(columns.map(({ label, of }) => [label, both(of)])),
      differences: Object.fromEntries(columns.map(({ label, of }) => [label, less(of(one), of(other))])),
    };
  });
}

function table(rows, columns) {
  const rank = (label, key) => ({ label, key, rank: true, show: row => count(key(row)) });
  const made = dataTable({
    label: "Ads of both answers",
    noun: "ads",
    sortBy: 1,
    search: row => row.id,
    columns: [
      { label: "ad", key: row => row.id, show: row => row.id, text: true },
      rank("rank now", row => row.ranks[0]),
      rank("rank there", row => row.ranks[1]),
      {
        label: "moved",
        key: row => row.move,
        title: "Places won there",
        show: row => (row.move === null ? (row.ranks[0] === null ? "only there" : "only now") : move(row.move)),
      },
      rank("light rank now", row => row.lights[0]),
      rank("light rank there", row => row.lights[1]),
      {
        label: "utility there \u2212 now",
        key: row => gap(row.utilities),
        show: row => difference(gap(row.utilities), row.utilities),
      },
      ...columns.map(({ label }) => ({
        label: `${label}, difference`,
        key: row => row.differences[label],
        show: row => difference(row.differences[label], row.values[label]),
      })),
    ],
  });
  made.fill(rows);
  return made.node;
}

const gap = ([now, there]) => (now === null || there === null ? null : there - now);
const difference = (value, [now, there]) => [
  signed(value),
  element("small", {}, `${decimal(now)} \u2192 ${decimal(there)}`),
];
