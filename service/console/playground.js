/* Panel: one request through the funnel, and every ad's way through it. */

import { adsTable } from "./ads.js";
import { ask } from "./api.js";
import { button, element, say, tile } from "./dom.js";
import { featureList } from "./features.js";
import { decimal, words } from "./format.js";
import { funnel } from "./funnel.js";
import { requestPicker } from "./picker.js";

export function playgroundPanel(section) {
  const status = element("div", { role: "status" }),
    result = element("div"),
    picker = requestPicker("playground");
  const go = button("Rank", rank, { class: "plain strong", id: "playground-rank" });
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
    go.disabled = true;
    say(status, "warning", "Ranking\u2026");
    try {
      const request = picker.read();
      const { serving } = await ask("admin/console/rank", { body: JSON.stringify({ request }) });
      result.replaceChildren(...shown(request, serving));
      say(
        status,
        "done",
        `${serving.answer.ads.ids.length.toLocaleString("en")} ads in ${decimal(serving.answer.timing_ms.total)} ms.`,
      );
    } catch (problem) {
      result.replaceChildren();
      say(status, "fault", problem.message);
    }
    go.disabled = false;
  }
  return { show: () => picker.show().catch(problem => say(status, "fault", problem.message)) };
}

function shown(request, { answer, releases, engines }) {
  const parts = [funnel(request, answer)];
  parts.push(...answer.warnings.map(line => element("p", { class: "warning" }, line)));
  if (answer.degraded)
    parts.push(
      element(
        "p",
        { class: "fault" },
        `Light order, since the heavy stage was ${answer.degraded.reason}: ${answer.degraded.detail}`,
      ),
    );
  parts.push(element("h3", {}, "What ranked it"), facts(answer, releases, engines));
  parts.push(element("h3", {}, "Features of the request"), featureList(request, answer.explain.features));
  const table = adsTable(answer);
  parts.push(element("h3", {}, "Ads"), table);
  return parts;
}

function facts(answer, releases, engines) {
  const ranked = Object.entries(releases).map(([scenario, release]) =>
    tile(
      scenario,
      release,
      Object.entries(engines[scenario])
        .map(([model, engine]) => `${words(model)}: ${engine}`)
        .join(", "),
    ),
  );
  const spent = Object.entries(answer.timing_ms).map(([stage, value]) => tile(words(stage), decimal(value) + " ms"));
  if (answer.arm) ranked.push(tile("arm", answer.arm));
  return element("div", { class: "tiles" }, ...ranked, ...spent);
}
