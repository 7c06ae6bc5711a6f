/* The dialog that asks before a pointer moves, and tells what became of it. */

import { ask } from "./api.js";
import { alone, button, element } from "./dom.js";
import { age, moment } from "./format.js";

/* Ask, and roll back where that is confirmed; `done` is called afterwards. */
export function confirmRollback(scenario, done) {
  const [from, to] = [scenario.current, scenario.rollback_to].map(id =>
    scenario.releases.find(one => one.release_id === id),
  );
  const result = element("div", { role: "status" });
  const cancel = button("Cancel", () => dialog.close()),
    go = button("Roll back", event => alone(event.currentTarget, roll), { class: "plain danger" });
  const dialog = element(
    "dialog",
    { "aria-labelledby": "rollback-title", "aria-describedby": "rollback-what" },
    element("h2", { id: "rollback-title" }, `Roll back ${scenario.scenario}?`),
    element(
      "div",
      { id: "rollback-what" },
      element(
        "dl",
        {},
        element("dt", {}, "from"),
        element("dd", {}, described(from)),
        element("dt", {}, "to"),
        element("dd", {}, described(to)),
      ),
      element(
        "p",
        {},
        "Every byte of the earlier release is checked first. All workers of all hosts follow within seconds; updates and takedowns in effect stay in effect.",
      ),
    ),
    result,
    element("div", { class: "buttons" }, cancel, go),
  );

  async function roll() {
    result.replaceChildren(
      element("p", { class: "warning" }, "Checking the earlier release and moving the pointer\u2026"),
    );
    try {
      const now = await ask("admin/rollback", {
        body: JSON.stringify({ scenario: scenario.scenario, current: scenario.current }),
      });
      const served =
        now.release_id === now.current
          ? `${now.scenario} is served by ${now.release_id}.`
          : `The pointer names ${now.current}; ${now.release_id} serves until that is loaded.`;
      result.replaceChildren(element("p", { class: "done" }, served));
      go.hidden = true;
      cancel.textContent = "Close";
    } catch (problem) {
      result.replaceChildren(element("p", { class: "fault" }, `Nothing was moved: ${problem.message}`));
      go.disabled = problem.status === 409;
    }
    cancel.focus();
  }

  const opener = document.activeElement?.dataset?.key;
  dialog.addEventListener("keydown", event => keepInside(event, [cancel, go]));
  dialog.addEventListener("close", async () => {
    dialog.remove();
    await done();
    [...document.querySelectorAll("[data-key]")].find(one => one.dataset.key === opener)?.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  cancel.focus();
}

function described(release) {
  if (!release) return "a release that is not listed";
  return [
    element("code", {}, release.release_id),
    element(
      "small",
      {},
      ` published ${age(release.age_s)} ago, catalogue of ${moment(release.watermark)}, two towers ${release.two_tower}`,
    ),
  ];
}

/* Tab goes round the buttons of the dialog. */
function keepInside(event, buttons) {
  if (event.key !== "Tab") return;
  const usable = buttons.filter(one => !one.disabled && !one.hidden),
    at = usable.indexOf(document.activeElement);
  event.preventDefault();
  usable.at((at + (event.shiftKey ? -1 : 1)) % usable.length).focus();
}
