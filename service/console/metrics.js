/* Reads the text that Prometheus reads, and makes rates and quantiles of what changed between two readings. */

/* Samples by name and labels, as [[labels, value], ...] by name. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const cut = line.lastIndexOf(" "),
      head = line.slice(0, cut),
      brace = head.indexOf("{");
    const name = brace < 0 ? head : head.slice(0, brace),
      labels = {};
    if (brace >= 0)
      for (const [, key, value] of head.slice(brace).matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
        labels[key] = unescaped(value);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push([labels, number(line.slice(cut + 1))]);
  }
  return found;
}

const unescaped = text => text.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
const number = text => (text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text));
const fits = (labels, wanted) => Object.entries(wanted).every(([key, value]) => labels[key] === value);

/* Sum of the samples with these labels; 0 without any. */
export function total(samples, name, wanted = {}) {
  return (samples.get(name) ?? []).reduce((sum, [labels, value]) => (fits(labels, wanted) ? sum + value : sum), 0);
}

/* The samples of a name, as { labels, value }. */
export const each = (samples, name) => (samples.get(name) ?? []).map(([labels, value]) => ({ labels, value }));

/* How much a counter grew; null where it began anew meanwhile. */
export function growth(before, now, name, wanted = {}) {
  const grown = total(now, name, wanted) - total(before, name, wanted);
  return grown < 0 ? null : grown;
}

/* A quantile of what a histogram counted between two readings, null where that is nothing: linear inside of its bucket,
   as Prometheus's histogram_quantile. */
export function quantile(before, now, name, wanted, share) {
  const buckets = edges(now, name, wanted),
    earlier = new Map(edges(before, name, wanted));
  const counts = buckets.map(([edge, sum]) => [edge, sum - (earlier.get(edge) ?? 0)]);
  const all = counts.length ? counts[counts.length - 1][1] : 0;
  if (all <= 0) return null;
  const at = counts.findIndex(([, sum]) => sum >= share * all),
    [edge, sum] = counts[at];
  const [low, under] = at ? counts[at - 1] : [0, 0];
  return edge === Infinity ? low : low + ((edge - low) * (share * all - under)) / (sum - under);
}

function edges(samples, name, wanted) {
  const summed = new Map();
  for (const [labels, value] of samples.get(`${name}_bucket`) ?? []) {
    if (fits(labels, wanted)) summed.set(number(labels.le), (summed.get(number(labels.le)) ?? 0) + value);
  }
  return [...summed].sort(([a], [b]) => a - b);
}
