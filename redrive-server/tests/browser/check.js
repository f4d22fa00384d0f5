// What a page must have for everybody to use it. Answers with what is wrong. A part of what tools like axe look at.

const wrong = [];
const say = (what, element) => wrong.push(`${what}: ${element.outerHTML.slice(0, 160)}`);
const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
const named = (element) => (element.getAttribute("aria-label") || element.innerText || element.title || "").trim();

if (!document.documentElement.lang) wrong.push("the page has no language");
if (!document.title.trim()) wrong.push("the page has no title");
if (document.querySelectorAll("h1").length !== 1) wrong.push("there is not one h1");
if (document.querySelectorAll("main").length !== 1) wrong.push("there is not one main");
let last = 1;
for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
  const level = Number(heading.localName[1]);
  if (level > last + 1) say("a heading leaves out a level", heading);
  last = level;
}
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) wrong.push(`two have the id ${id}`);
for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
  if (shown(field) && !field.labels.length && !field.getAttribute("aria-label")) say("a field has no label", field);
}
for (const element of document.querySelectorAll("a, button, summary")) if (shown(element) && !named(element)) say("it has no name", element);
for (const svg of document.querySelectorAll("svg")) {
  if (svg.getAttribute("aria-hidden") !== "true" && !(svg.getAttribute("role") === "img" && svg.getAttribute("aria-label"))) say("a picture has no name", svg);
}
for (const table of document.querySelectorAll("table")) if (!table.querySelector("th")) say("a table has no headings", table);
for (const list of document.querySelectorAll("ul, ol")) for (const child of list.children) if (child.localName !== "li") say("a list has something else", child);
for (const element of document.querySelectorAll("[tabindex]")) if (element.tabIndex > 0) say("it comes before its turn", element);

// Contrast: 4.5 to 1, or 3 to 1 for large letters.
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
function channels(colour) {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
}
const light = (colour) => {
  const [r, g, b] = colour.map((part) => part / 255).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = channels(getComputedStyle(at).backgroundColor);
    if (colour[3] > 0.99) return colour;
  }
  return [255, 255, 255, 1];
}
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let text = texts.nextNode(); text; text = texts.nextNode()) {
  const element = text.parentElement;
  if (!text.data.trim() || !shown(element) || element.closest("svg, .skip")) continue;
  const style = getComputedStyle(element);
  const [one, other] = [light(channels(style.color)), light(ground(element))].sort((a, b) => b - a);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  const contrast = (one + 0.05) / (other + 0.05);
  if (contrast < (large ? 3 : 4.5)) say(`contrast ${contrast.toFixed(2)}`, element);
}

// A phone: nothing sticks out, and what is pressed is large enough.
if (innerWidth < 500) {
  const room = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > room) {
    wrong.push(`it is ${document.documentElement.scrollWidth} wide`);
    const inside = (element) => element.closest(".scroll, .menu, .tabs");
    for (const element of document.body.querySelectorAll("*")) if (!inside(element) && element.getBoundingClientRect().right > room) say("it sticks out", element);
  }
  for (const table of document.querySelectorAll("table.cards")) if (table.offsetWidth > table.parentElement.clientWidth || table.scrollWidth > table.offsetWidth) say("a table is cut off", table);
  for (const button of document.querySelectorAll("button, .button, select")) {
    if (shown(button) && button.getBoundingClientRect().height < 43.5) say("too small for a finger", button);
  }
}
return wrong;
