/* The page: signs in, and shows one panel at a time, by the address's hash. */

import { ask, forgetToken, keepToken, token } from "./api.js";
import { comparePanel } from "./compare.js";
import { part } from "./dom.js";
import { livePanel } from "./live.js";
import { playgroundPanel } from "./playground.js";
import { releasesPanel } from "./releases.js";

const PANELS = { releases: releasesPanel, live: livePanel, playground: playgroundPanel, compare: comparePanel };
const begun = {};
let shown = null,
  signedIn = false;

/* Show the panel that the address names. A panel is made when it is first shown. */
function route() {
  if (!signedIn) return;
  const named = location.hash.slice(1),
    wanted = Object.hasOwn(PANELS, named) ? named : "releases";
  if (shown === wanted) return;
  if (shown) {
    part(`panel-${shown}`).hidden = true;
    begun[shown].hide?.();
  }
  shown = wanted;
  for (const link of document.querySelectorAll("#panels a")) {
    if (link.hash === `#${wanted}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const section = part(`panel-${wanted}`);
  section.hidden = false;
  document.title = `${section.querySelector("h2").textContent} \u2013 adsieve console`;
  begun[wanted] ??= PANELS[wanted](section);
  begun[wanted].show();
}

function enter() {
  signedIn = true;
  part("sign-in").hidden = true;
  part("panels").hidden = false;
  part("sign-out").hidden = !token();
  route();
}

/* Ask for the token; what was on the page goes. */
function leave(why) {
  const focusIt = signedIn || part("sign-in").hidden;
  signedIn = false;
  forgetToken();
  for (const name of Object.keys(begun)) {
    begun[name].hide?.();
    part(`panel-${name}`).replaceChildren(part(`title-${name}`));
    part(`panel-${name}`).hidden = true;
    delete begun[name];
  }
  shown = null;
  document.querySelector("dialog")?.remove();
  part("panels").hidden = part("sign-out").hidden = true;
  part("sign-in").hidden = false;
  part("sign-in-why").hidden = !why;
  part("sign-in-why").textContent = why;
  part("token").value = "";
  if (focusIt) part("token").focus();
}

/* What to say of a 401: nothing where no token was sent and one would do. */
function why(problem) {
  if (problem.sent) return "The service has another token.";
  return problem.message.startsWith("without") ? problem.message : "";
}

/* Whether the service answers this page, with the token that it has; without one it is not asked in vain. */
async function tryToEnter() {
  if (!token() && document.documentElement.dataset.token === "needed") return leave("");
  try {
    await ask("admin/console/requests");
    enter();
  } catch (problem) {
    if (problem.status !== 401) leave(problem.message);
  }
}

part("sign-in-form").addEventListener("submit", event => {
  event.preventDefault();
  keepToken(part("token").value.trim());
  tryToEnter();
});
part("sign-out").addEventListener("click", () => leave(""));
document.querySelector(".skip").addEventListener("click", event => {
  event.preventDefault();
  part("main").focus();
});
window.addEventListener("refused", event => leave(why(event.detail)));
window.addEventListener("hashchange", route);
tryToEnter();
