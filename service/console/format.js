/* Numbers, moments and durations as people read them. */

const NONE = "\u2013";
const minus = text => text.replace(/^-/, "\u2212");

export const count = value =>
  value === null || value === undefined ? NONE : minus(Math.round(value).toLocaleString("en"));

/* A number to so many significant digits. */
export function decimal(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (Number.isInteger(value)) return count(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return minus(value.toExponential(digits - 1));
  return minus(value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size || 1)))));
}

export const percent = share =>
  share === null || Number.isNaN(share) ? NONE : decimal(100 * share, share < 0.1 ? 2 : 3) + " %";

export const milliseconds = seconds =>
  seconds === null || Number.isNaN(seconds) ? NONE : decimal(1000 * seconds, 3) + " ms";

/* A difference, with its sign. */
export const signed = value =>
  value === null || Number.isNaN(value) ? NONE : (value > 0 ? "+" : "") + decimal(value, 2);

/* Seconds as their largest whole units. */
export function age(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0) return "ahead of this clock by " + age(-seconds);
  const units = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  const at = units.findIndex(([, size]) => seconds >= size);
  if (at === -1) return "0 s";
  const [unit, size] = units[at],
    whole = Math.floor(seconds / size);
  const rest = at + 1 < units.length ? Math.floor((seconds % size) / units[at + 1][1]) : 0;
  return `${whole} ${unit}` + (rest && whole < 10 ? ` ${rest} ${units[at + 1][0]}` : "");
}

/* A moment (ISO 8601) to the minute, in UTC. */
export function moment(text) {
  if (!text) return NONE;
  return new Date(text).toISOString().slice(0, 16).replace("T", " ") + " UTC";
}

export const words = name => name.replaceAll("_", " ").replaceAll(".", " \u00b7 ");
