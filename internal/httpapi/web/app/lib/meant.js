// Whether a press was meant for this page. Another site may open it in the place where its reader is
// about to press: with a game of keys, or with the first click of two. So a page that appears changes
// nothing until it was there for a moment in which nobody pressed anything.
const moment = 1000;
let since = performance.now(), settled = false, last = false;

const appear = () => { since = performance.now(); settled = false; };
addEventListener("focus", appear);
addEventListener("pageshow", appear);
document.addEventListener("visibilitychange", appear);

for (const press of ["keydown", "pointerdown", "click"]) addEventListener(press, () => {
  const now = performance.now();
  settled ||= now - since >= moment;
  if (!settled) since = now;
  last = settled;
}, true);

/** Whether the last press was meant for this page. */
export const meant = () => last;
