/* Panel: what all workers of this host do now, from /metrics. */

import { ask } from "./api.js";
import { button, element, say } from "./dom.js";
import { age, count, decimal, milliseconds, percent, words } from "./format.js";
import { each, growth, parse, quantile, total } from "./metrics.js";
import { sparkline } from "./spark.js";

const EVERY_MS = 2000,
  WINDOW_S = 10,
  LENGTH = 60;
const STAGES = ["decode", "query_tower", "light", "heavy", "total"];

/* What is drawn: name, value of a window { before, now, seconds } or null, how it is written. */
const FIGURES = [
  [
    "requests a second",
    ({ before, now, seconds }) => per(growth(before, now, "adsieve_rank_requests_total"), seconds),
    value => decimal(value, 3),
  ],
  [
    "candidates a second",
    ({ before, now, seconds }) => per(growth(before, now, "adsieve_candidates_sum"), seconds),
    value => (value === null ? "\u2013" : count(value)),
  ],
  ["p50 of a request", one => stage(one, "total", 0.5), milliseconds],
  ["p99 of a request", one => stage(one, "total", 0.99), milliseconds],
  [
    "unknown ads",
    one => share(one, "adsieve_dropped_ads_total", { reason: "unknown" }, "adsieve_candidates_sum"),
    percent,
  ],
  [
    "degraded answers",
    one => share(one, "adsieve_degraded_requests_total", {}, "adsieve_stage_seconds_count", { stage: "total" }),
    percent,
  ],
  ["problems", one => share(one, "adsieve_problems_total", {}, "adsieve_rank_requests_total"), percent],
  ["in work", ({ now }) => total(now, "adsieve_rank_in_flight"), count],
  ["wait for the heavy ranker", ({ now }) => total(now, "adsieve_heavy_waiting"), count],
  [
    "workers ready",
    ({ now }) => total(now, "adsieve_ready_processes"),
    (value, { now }) => `${count(value)} of ${count(total(now, "adsieve_processes"))}`,
  ],
  ["feedback dropped", ({ now }) => dropped(now), count],
];

const per = (grown, seconds) => (grown === null ? null : grown / seconds);
const stage = ({ before, now }, name, part) => quantile(before, now, "adsieve_stage_seconds", { stage: name }, part);
const dropped = now =>
  total(now, "adsieve_feedback_requests_total") - total(now, "adsieve_feedback_requests_total", { result: "written" });
function share({ before, now }, name, wanted, of, ofWanted = {}) {
  const whole = growth(before, now, of, ofWanted),
    part = growth(before, now, name, wanted);
  return whole ? part / whole : null;
}

export function livePanel(section) {
  const status = element("div", { role: "status" }),
    figures = FIGURES.map(([name]) => figure(name)),
    rows = STAGES.map(stageRow);
  const serving = servingTable(),
    pause = button("Pause", turn, { "aria-pressed": "false" });
  const stages = element(
    "table",
    {},
    element("caption", {}, "Latency of each stage"),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ...["stage", "p50", "p99", "p99 over two minutes", "p50 since the start", "p99 since the start"].map(
          (text, at) => element("th", { scope: "col", class: at ? null : "text" }, text),
        ),
      ),
    ),
    element("tbody", {}, ...rows.map(row => row.node)),
  );
  section.append(
    element(
      "div",
      { class: "controls" },
      pause,
      element(
        "span",
        { class: "soft" },
        `Every ${EVERY_MS / 1000} s, over the last ${WINDOW_S} s, over all workers of this host. Quantiles are exact to their bucket.`,
      ),
    ),
    status,
    element("div", { class: "tiles" }, ...figures.map(one => one.node)),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Latency of each stage" }, stages),
    serving.node,
  );
  let timer = null,
    readings = [],
    paused = false;

  async function read() {
    if (document.hidden || paused) return;
    let text;
    try {
      text = await ask("metrics", { text: true });
    } catch (problem) {
      return say(status, "fault", problem.message);
    }
    const now = { at: performance.now() / 1000, samples: parse(text) };
    readings = [...readings.filter(one => now.at - one.at <= WINDOW_S + EVERY_MS / 1000), now];
    say(status, "", "");
    if (readings.length > 1) draw({ before: readings[0].samples, now: now.samples, seconds: now.at - readings[0].at });
    else setTimeout(read, 500);
  }
  function draw(span) {
    figures.forEach((one, at) => one.add(FIGURES[at][1](span), FIGURES[at][2], span));
    for (const row of rows) row.add(span);
    serving.draw(span.now);
  }
  function turn() {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    if (paused) readings = [];
    else read();
  }
  return {
    show() {
      readings = [];
      read();
      timer = setInterval(read, EVERY_MS);
      document.addEventListener("visibilitychange", read);
    },
    hide() {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", read);
    },
  };
}

function figure(name) {
  const value = element("b", {}, "\u2013"),
    line = sparkline(`${name}, the last two minutes`),
    history = [];
  return {
    node: element("div", { class: "tile" }, element("span", {}, name), value, line.node),
    add(found, write, span) {
      value.textContent = write(found, span);
      history.push(found);
      if (history.length > LENGTH) history.shift();
      line.draw(history, LENGTH);
    },
  };
}

function stageRow(name) {
  const cells = [0, 1, 2, 3].map(() => element("td", {}, "\u2013")),
    line = sparkline(`p99 of ${words(name)}, the last two minutes`),
    history = [],
    nothing = new Map();
  return {
    node: element(
      "tr",
      {},
      element("th", { scope: "row" }, words(name)),
      cells[0],
      cells[1],
      element("td", {}, line.node),
      cells[2],
      cells[3],
    ),
    add(span) {
      const whole = { before: nothing, now: span.now };
      const found = [
        stage(span, name, 0.5),
        stage(span, name, 0.99),
        stage(whole, name, 0.5),
        stage(whole, name, 0.99),
      ];
      found.forEach((value, at) => {
        cells[at].textContent = milliseconds(value);
      });
      history.push(found[1]);
      if (history.length > LENGTH) history.shift();
      line.draw(history, LENGTH);
    },
  };
}

/* A row a scenario: engines, ages, updates. */
function servingTable() {
  const heads = ["scenario", "engines", "release serves", "catalogue is old", "updates wait", "ads beside the index"],
    body = element("tbody");
  const one = (now, name, scenario) =>
    each(now, name).find(({ labels }) => labels.scenario === scenario)?.value ?? null;
  const engines = (now, scenario) =>
    each(now, "adsieve_engine_info")
      .filter(({ labels }) => labels.scenario === scenario)
      .map(({ labels }) => `${words(labels.model)}: ${labels.engine}`)
      .join(" \u00b7 ");
  const columns = [
    ["adsieve_release_age_seconds", age],
    ["adsieve_index_age_seconds", age],
    ["adsieve_updates_waiting", count],
    ["adsieve_overlay_rows", count],
  ];
  const line = (now, name) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      element("td", { class: "text" }, engines(now, name)),
      ...columns.map(([metric, write]) => element("td", {}, write(one(now, metric, name)))),
    );
  const table = element(
    "table",
    {},
    element("caption", {}, "What serves"),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ...heads.map((text, at) => element("th", { scope: "col", class: at < 2 ? "text" : null }, text)),
      ),
    ),
    body,
  );
  return {
    node: element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What serves" }, table),
    draw(now) {
      const names = [...new Set(each(now, "adsieve_index_age_seconds").map(({ labels }) => labels.scenario))].sort();
      body.replaceChildren(...names.map(name => line(now, name)));
    },
  };
}
