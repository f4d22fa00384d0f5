// Remembers what the keyboard has reached since, and whether it could be seen there. The page stays as it is meanwhile.

window.fetch = () => new Promise(() => {});
document.activeElement?.blur();
const can = "a[href], button, input:not([type=hidden]), select, textarea, summary";
const seen = new Set(), unseen = [];
const name = (element) => element.outerHTML.slice(0, 160);
window.controls = [...document.querySelectorAll(can)].filter((element) => element.checkVisibility({ visibilityProperty: true }) && !element.disabled);
document.addEventListener("focusin", ({ target }) => {
  seen.add(target);
  const { outlineStyle, outlineWidth } = getComputedStyle(target);
  const box = target.getBoundingClientRect();
  if (outlineStyle === "none" || parseFloat(outlineWidth) < 2) unseen.push(`focus is not seen: ${name(target)}`);
  if (box.bottom <= 0 || box.right <= 0 || box.top >= innerHeight || box.left >= innerWidth) unseen.push(`focus is out of sight: ${name(target)}`);
});
window.missed = () => [...unseen, ...window.controls.filter((element) => !seen.has(element)).map((element) => `not reached: ${name(element)}`)];
