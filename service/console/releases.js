/* Panel: what serves each scenario, what the store keeps of it, and the way back. */

import { ask } from "./api.js";
import { button, element, say, tile } from "./dom.js";
import { age, count, decimal, moment, words } from "./format.js";
import { confirmRollback } from "./rollback.js";

const EVERY_MS = 5000;

export function releasesPanel(section) {
  const status = element("div", { role: "status" }),
    faults = element("div"),
    list = element("div");
  const again = button("Refresh", () => load(true));
  section.append(element("div", { class: "controls" }, again), status, faults, list);
  let timer = null,
    drawn = "",
    told = null;

  async function load(always) {
    let answer;
    try {
      answer = await ask("admin/console/releases");
    } catch (problem) {
      return say(status, "fault", problem.message);
    }
    say(status, "", "");
    const text = JSON.stringify(answer, (name, value) => (name.endsWith("age_s") ? undefined : value));
    if (always || text !== drawn) draw(answer);
    drawn = text;
  }
  function draw(answer) {
    told = answer;
    const focus = document.activeElement?.dataset?.key;
    faults.replaceChildren(...troubles(answer));
    list.replaceChildren(...answer.scenarios.map(one => scenario(one, answer.may_roll_back, () => load(true))));
    if (answer.scenarios.length === 0) say(list, "warning", "The store holds no release yet: adsieve index publish.");
    if (focus) [...list.querySelectorAll("[data-key]")].find(one => one.dataset.key === focus)?.focus();
  }
  return {
    show() {
      load(told === null);
      timer = setInterval(() => document.hidden || load(false), EVERY_MS);
    },
    hide() {
      clearInterval(timer);
    },
  };
}

function troubles({ refused, faults }) {
  const lines = refused.map(
    one =>
      `Release ${one.release_id || "?"} of ${one.scenario || "the store"} is refused since ${moment(new Date(1000 * one.at).toISOString())}: ${one.error}`,
  );
  lines.push(...faults.map(one => `${one.what}, since ${moment(new Date(1000 * one.at).toISOString())}: ${one.error}`));
  return lines.map(line => element("p", { class: "fault" }, line));
}

function scenario(one, mayRollBack, reload) {
  const id = `scenario-${one.scenario}`,
    current = one.releases.find(release => release.is_serving);
  const since = one.loaded_at === null ? "" : `loaded ${age(Date.now() / 1000 - one.loaded_at)} ago`;
  const made = element("article", { "aria-labelledby": id }, element("h3", { id }, one.scenario));
  if (one.error) made.append(element("p", { class: "fault" }, one.error));
  if (one.current !== one.serving)
    made.append(
      element(
        "p",
        { class: "warning" },
        `The pointer names ${one.current ?? "nothing"}: it is being loaded, or it is refused.`,
      ),
    );
  made.append(
    element(
      "div",
      { class: "tiles" },
      tile("serves", one.serving ?? "nothing", since),
      tile("published", current ? age(current.age_s) + " ago" : "\u2013"),
      tile(
        "catalogue",
        current ? age(current.watermark_age_s) + " old" : "\u2013",
        current ? moment(current.watermark) : "",
      ),
      tile("ads", count(one.num_ads), `${count(one.overlay_rows)} new or changed since`),
      ...Object.entries(one.engines).map(([model, engine]) => tile(words(model) + " runs on", engine)),
    ),
  );
  made.append(way(one, mayRollBack, reload), kept(one));
  return made;
}

function way(one, mayRollBack, reload) {
  const why = !mayRollBack
    ? "Rolling back needs ADSIEVE_ADMIN_TOKEN to be set for the service."
    : one.rollback_to === null
      ? "There is no earlier release to roll back to."
      : `Leads to ${one.rollback_to}.`;
  const note = `why-${one.scenario}`;
  const press = button("Roll back\u2026", () => confirmRollback(one, reload), {
    "data-key": `rollback-${one.scenario}`,
    "aria-describedby": note,
    "aria-label": `Roll back ${one.scenario}\u2026`,
  });
  press.disabled = !mayRollBack || one.rollback_to === null;
  return element("p", {}, press, " ", element("span", { class: "soft", id: note }, why));
}

/* Releases side by side, newest first; a row a fact or metric that any of them has. */
function kept(one) {
  const releases = one.releases,
    head = element("tr", {}, element("th", { scope: "col", class: "text" }, "release"));
  head.append(...releases.map(release => element("th", { scope: "col" }, release.release_id)));
  const body = element("tbody");
  const line = (name, cell) =>
    body.append(
      element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        ...releases.map(release => element("td", {}, cell(release))),
      ),
    );
  line("state", badges);
  line("published", release => `${age(release.age_s)} ago`);
  line("catalogue as of", release => moment(release.watermark));
  line("ads in the index", release => count(release.num_ads));
  line("two towers", release => release.two_tower);
  line("heavy ranker", release => release.heavy ?? "none");
  line("index", release => release.index);
  for (const [title, key] of [
    ["two towers", "two_tower_metrics"],
    ["heavy ranker", "heavy_metrics"],
    ["search of the index", "retrieval_recall"],
    ["replay before publishing", "replay"],
  ])
    metrics(body, releases, title, key);
  line("judgement", judgement);
  line("warnings of the index", release => notes(release.index_warnings, "warning"));
  const caption =
    `${count(releases.length)} ${releases.length === 1 ? "release" : "releases"} kept, what serves first` +
    (one.omitted ? `, ${count(one.omitted)} older ones not shown` : "");
  const table = element("table", { class: "kept" }, element("caption", {}, caption), element("thead", {}, head), body);
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": `Releases of ${one.scenario}` },
    table,
  );
}

function metrics(body, releases, title, key) {
  const names = [...new Set(releases.flatMap(release => Object.keys(release[key])))];
  if (names.length === 0) return;
  body.append(
    element("tr", {}, element("th", { class: "group", scope: "row" }, title), ...releases.map(() => element("td"))),
  );
  for (const name of names) {
    body.append(
      element(
        "tr",
        {},
        element("th", { scope: "row" }, words(name)),
        ...releases.map(({ [key]: told }) =>
          element("td", {}, Object.hasOwn(told, name) ? decimal(told[name], 4) : "\u2013"),
        ),
      ),
    );
  }
}

function badges(release) {
  const said = [[release.state, release.state === "current" ? "good" : "soft"]];
  if (release.is_serving) said.push(["serves", "good"]);
  if (release.pinned) said.push(["pinned", "unclear"]);
  return said.map(([text, kind]) => element("span", { class: `badge ${kind}` }, text));
}

function judgement(release) {
  const judged = release.judgement;
  if (judged === null) return "not judged";
  const parts = [judged.against ? `against ${judged.against}` : "the first of its scenario"];
  if (judged.override) parts.push(element("small", { class: "bad" }, `published all the same: ${judged.override}`));
  return [
    ...parts,
    ...notes(judged.failures, "bad"),
    ...notes(judged.warnings, "unclear"),
    ...notes(judged.skipped, "soft"),
  ];
}

const notes = (lines, kind) =>
  lines.map(line => element("small", { class: kind === "warning" ? "unclear" : kind }, line));
