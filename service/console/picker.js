/* Where a request comes from: one that the serving bundle holds, or one that is pasted. */

import { ask } from "./api.js";
import { element, offer } from "./dom.js";
import { count } from "./format.js";

/* Fields for a request; `changed` is called with its scenario, null where the text is no request. */
export function requestPicker(id, changed = () => {}) {
  const select = element("select", { on: { change: load } });
  const text = element("textarea", {
    id: `${id}-text`,
    spellcheck: "false",
    autocomplete: "off",
    on: { input: () => changed(scenario()) },
  });
  const fold = element(
    "details",
    { class: "field" },
    element("summary", {}, "The request as JSON: change it, or paste another"),
    element("label", { for: `${id}-text`, class: "soft" }, "A body as for POST /rank"),
    text,
  );
  let saved = [];

  async function show() {
    ({ requests: saved } = await ask("admin/console/requests"));
    offer(
      select,
      saved.map((one, at) => [
        String(at),
        `${one.scenario} ${one.number}: ${one.request_id ?? "no id"}, ${one.candidates === null ? "retrieved" : count(one.candidates) + " candidates"}`,
      ]),
    );
    if (text.value === "" && saved.length) await load();
    else changed(scenario());
  }
  async function load() {
    const one = saved[Number(select.value)];
    text.value = await ask(`admin/console/requests/${encodeURIComponent(one.scenario)}/${one.number}`, { text: true });
    changed(scenario());
  }
  function scenario() {
    try {
      return read().request.scenario ?? null;
    } catch {
      return null;
    }
  }
  /* The request, and its text as it is to be sent: a number here holds no integer of 64 bits. */
  function read() {
    try {
      return { request: JSON.parse(text.value), text: text.value };
    } catch (error) {
      fold.open = true;
      throw new Error(`the request is not JSON: ${error.message}`);
    }
  }
  return {
    node: element(
      "div",
      {},
      element("div", { class: "controls" }, element("label", {}, "saved request", select)),
      fold,
    ),
    controls: select,
    show,
    read,
  };
}
