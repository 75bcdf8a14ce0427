// Whether a press was meant for this page. Another site may open it in the place where its reader is
// about to press: with a game of keys, or with the first click of two. So a page that appears changes
// nothing until it was there for a moment in which nobody pressed anything.
const moment = 1000;
const mark = document.documentElement.dataset;
let last = false, timer = 0;

const wait = () => {
  delete mark.settled;
  clearTimeout(timer);
  timer = setTimeout(() => { mark.settled = ""; }, moment);
};
wait();
addEventListener("pageshow", wait);
document.addEventListener("visibilitychange", wait);

for (const press of ["keydown", "pointerdown", "click"]) addEventListener(press, () => {
  last = "settled" in mark;
  if (!last) wait();
}, true);

/** Whether the last press was meant for this page. */
export const meant = () => last;
