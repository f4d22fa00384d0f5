// What pages do beyond being read. Everything works without it, but for following live.

import * as times from "./times.js";
import * as live from "./live.js";
import * as bulk from "./bulk.js";

times.start();
live.start();
bulk.start();
prepare();
showHere();
window.addEventListener("resize", showHere);
document.getElementById("main").addEventListener("fresh", prepare);

// Where one is, in a menu that is wider than the screen.
function showHere() {
  document.querySelector(".menu [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

function prepare() {
  for (const part of document.querySelectorAll("[data-script]")) part.hidden = false;
}

// One box ticks all of its table.
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-all]")) return;
  for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
});

// Copying what stands beside a button.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  const said = button.textContent;
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = said; }, 1500);
});

// What cannot be taken back is asked for once more.
document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.sure;
  if (question && !window.confirm(question)) event.preventDefault();
});
