/* How many ads each step of the funnel leaves, as bars to one scale, and why the others fell out. */

import { drawing, element } from "./dom.js";
import { count } from "./format.js";

const WIDTH = 400,
  HEIGHT = 16;
const REASONS = {
  unknown: "unknown to the index",
  inactive: "not active, taken down or without budget",
  filtered: "of an excluded advertiser",
  duplicate: "listed twice",
  bid: "without a usable bid",
  scenario: "of another scenario",
};

export function funnel(request, answer) {
  const steps = stepsOf(request, answer),
    most = Math.max(...steps.map(step => step.count), 1);
  const bar = step =>
    drawing(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      drawing("rect", {
        x: 0,
        y: 1,
        height: HEIGHT - 2,
        rx: 2,
        width: step.count ? Math.max(2, (WIDTH * step.count) / most) : 0,
      }),
    );
  const line = step =>
    element(
      "li",
      {},
      element("span", {}, step.name, " ", element("b", {}, count(step.count))),
      bar(step),
      step.why ? element("small", {}, step.why) : null,
    );
  return element("ol", { class: "funnel", "aria-label": "The funnel" }, ...steps.map(line));
}

function stepsOf(request, { ads, dropped, degraded, explain }) {
  const { candidates, ranked, survivors } = explain.counts;
  const fell = Object.entries(dropped)
    .filter(([, ids]) => ids.length)
    .map(([reason, ids]) => `${count(ids.length)} ${REASONS[reason] ?? reason}`);
  const heavy = ads.heavy === null ? 0 : survivors,
    explored = ads.explored.filter(Boolean).length;
  return [
    { name: request.candidates ? "handed in" : "retrieved", count: candidates },
    { name: "eligible", count: ranked, why: fell.length ? `dropped: ${fell.join(", ")}` : "" },
    {
      name: "survivors",
      count: survivors,
      why: [
        survivors < ranked ? `${count(ranked - survivors)} of lower light utility` : "",
        explored ? `${count(explored)} drawn to explore` : "",
      ]
        .filter(Boolean)
        .join(", "),
    },
    {
      name: "heavy",
      count: heavy,
      why: heavy ? "" : degraded ? `no: ${degraded.reason}` : survivors ? "not asked for" : "",
    },
    {
      name: "final",
      count: ads.ids.length,
      why: ads.ids.length < survivors ? `${count(survivors - ads.ids.length)} beyond the limit` : "",
    },
  ];
}
