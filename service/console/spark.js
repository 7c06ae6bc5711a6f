/* A line of the last values, without axes: the figure beside it says the last one. */

import { drawing } from "./dom.js";

const WIDTH = 120,
  HEIGHT = 30;

export function sparkline(label) {
  const line = drawing("polyline", { points: "" });
  const node = drawing(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    line,
  );
  return {
    node,
    /* Values from old to new, null where there is none; `length` is how many fit in. */
    draw(values, length) {
      const known = values.filter(value => value !== null),
        top = Math.max(...known, 0) || 1;
      const x = at => (WIDTH * (at + length - values.length)) / (length - 1),
        y = value => HEIGHT - 2 - ((HEIGHT - 4) * value) / top;
      line.setAttribute(
        "points",
        values
          .map((value, at) => (value === null ? "" : `${x(at).toFixed(1)},${y(value).toFixed(1)}`))
          .filter(Boolean)
          .join(" "),
      );
    },
  };
}
