/* Calls of this service. The token stays in this tab: memory, and the session storage that ends with it. */

const KEY = "adsieve-admin-token";

export const token = () => sessionStorage.getItem(KEY);
export const keepToken = text => sessionStorage.setItem(KEY, text);
export const forgetToken = () => sessionStorage.removeItem(KEY);

/* What the service answered instead of an answer (RFC 9457), or that it did not answer: status 0. */
export class Problem extends Error {
  constructor(status, detail, field) {
    super(field ? `${field}: ${detail}` : detail);
    this.status = status;
  }
}

/* Call a path relative to the page; a 401 is also told to the window as `refused`. */
export async function ask(path, { body, text = false } = {}) {
  const headers = {},
    secret = token();
  if (secret) headers.Authorization = "Bearer " + String.fromCharCode(...new TextEncoder().encode(secret));
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const options = {
    method: body === undefined ? "GET" : "POST",
    headers,
    body,
    cache: "no-store",
    credentials: "omit",
  };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Problem(0, "the service does not answer");
  }
  if (answer.ok) return text ? answer.text() : answer.json();
  const told = await answer.json().catch(() => ({}));
  const problem = new Problem(answer.status, told.detail ?? `HTTP ${answer.status}`, told.field);
  problem.sent = Boolean(secret);
  if (answer.status === 401) window.dispatchEvent(new CustomEvent("refused", { detail: problem }));
  throw problem;
}
