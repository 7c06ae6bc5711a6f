/* Panel: one request through the funnel, and every ad's way through it. */

import { adsTable } from "./ads.js";
import { ask } from "./api.js";
import { alone, button, element, say } from "./dom.js";
import { featureList } from "./features.js";
import { count, decimal, words } from "./format.js";
import { funnel } from "./funnel.js";
import { requestPicker } from "./picker.js";

export function playgroundPanel(section) {
  const status = element("div", { role: "status" }),
    result = element("div"),
    picker = requestPicker("playground");
  const go = button("Rank", event => alone(event.currentTarget, rank), {
    class: "plain strong",
    id: "playground-rank",
  });
  section.append(
    element(
      "p",
      { class: "soft" },
      "Ranked by what serves, as POST /rank would, but neither counted nor logged for training.",
    ),
    picker.node,
    element("p", {}, go),
    status,
    result,
  );

  async function rank() {
    say(status, "warning", "Ranking\u2026");
    try {
      const { request, text } = picker.read();
      const { serving } = await ask("admin/console/rank", { body: `{"request": ${text}}` });
      result.replaceChildren(...shown(request, serving));
      say(
        status,
        "done",
        `${count(serving.answer.ads.ids.length)} ads of ${count(serving.answer.explain.counts.candidates)}.`,
      );
    } catch (problem) {
      result.replaceChildren();
      say(status, "fault", problem.message);
    }
  }
  return { show: () => picker.show().catch(problem => say(status, "fault", problem.message)) };
}

function shown(request, { answer, releases, engines }) {
  const lines = answer.warnings.map(line => element("p", { class: "warning" }, line));
  if (answer.degraded) {
    const { reason, detail } = answer.degraded;
    lines.push(element("p", { class: "fault" }, `Light order, since the heavy stage was ${reason}: ${detail}`));
  }
  return [
    element("div", { class: "overview" }, funnel(request, answer), facts(answer, releases, engines)),
    ...lines,
    element("h3", {}, "Features of the request"),
    featureList(request, answer.explain.features),
    element("h3", {}, "Ads"),
    adsTable(answer),
  ];
}

/* What ranked it, and how long each stage took. */
function facts(answer, releases, engines) {
  const pair = (name, ...values) => [element("dt", {}, name), ...values.map(value => element("dd", {}, value))];
  const ranked = Object.entries(releases).flatMap(([scenario, release]) => {
    const runs = Object.entries(engines[scenario]).map(([model, engine]) => `${words(model)}: ${engine}`);
    return pair(scenario, release, element("small", {}, runs.join(" \u00b7 ")));
  });
  const spent = ["query_tower", "light", "heavy"].map(
    stage => `${words(stage)} ${decimal(answer.timing_ms[stage])} ms`,
  );
  const arm = answer.arm ? pair("arm", answer.arm) : [];
  return element("dl", { class: "facts" }, ...ranked, ...arm, ...pair("time", spent.join(" \u00b7 ")));
}
