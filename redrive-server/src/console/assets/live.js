// Follows what happens: the server tells that something did, and the page is loaded again in its place. At most once a second, not
// while somebody types or has a menu open, not while nobody looks. Other nodes' doings are not told here: so it also looks by itself.

import { show, sync } from "./times.js";

const main = document.getElementById("main");
const about = main.dataset.live;
const pulse = document.querySelector("[data-pulse]");
let source, timer, last = 0, wanted = false, loading = false;

const busy = () => main.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), textarea, select");

const changed = (field) => field.options
  ? field.selectedIndex !== Math.max(0, [...field.options].findIndex((option) => option.defaultSelected))
  : field.value !== field.defaultValue;
const name = (field) => `${field.localName}[name="${CSS.escape(field.name)}"]${field.getAttribute("form") ? `[form="${field.getAttribute("form")}"]` : ""}`;

// What a person has done to the page: what is ticked, open and in focus.
function remember() {
  const ticked = [...main.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value);
  const open = [...main.querySelectorAll("details[id]")].filter((part) => part.open).map((part) => part.id);
  const dirty = [...main.querySelectorAll("select[name], input[name]:not([type=checkbox], [type=hidden]), textarea[name]")].filter(changed).map((field) => [name(field), field.value]);
  const focus = main.contains(document.activeElement) ? document.activeElement : null;
  const key = focus && (focus.id ? `#${CSS.escape(focus.id)}` : focus.href ? `a[href="${CSS.escape(focus.getAttribute("href"))}"]`
    : focus.value ? `[value="${CSS.escape(focus.value)}"]` : null);
  return () => {
    for (const box of main.querySelectorAll("input[type=checkbox]")) if (ticked.includes(box.value)) box.checked = true;
    for (const [key, value] of dirty) { const field = main.querySelector(key); if (field) field.value = value; }
    for (const id of open) { const part = document.getElementById(id); if (part) part.open = true; }
    if (key) main.querySelector(key)?.focus({ preventScroll: true });
  };
}

async function load() {
  if (loading || busy()) return;
  loading = true;
  wanted = false;
  last = Date.now();
  try {
    const answer = await fetch(location.href, { redirect: "manual" });
    if (answer.type === "opaqueredirect") return location.reload(); // logged out meanwhile
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("main");
    const known = answer.ok || answer.status === 404; // it may have ended and be gone
    pulse?.classList.toggle("late", !known);
    if (!known || !fresh || busy()) return;
    sync(page.documentElement.dataset.now);
    show(fresh);
    show(main);
    if (fresh.innerHTML !== main.innerHTML) {
      const restore = remember();
      main.replaceChildren(...fresh.childNodes);
      restore();
      main.dispatchEvent(new CustomEvent("fresh"));
    }
    main.dataset.loads = Number(main.dataset.loads ?? 0) + 1;
  } catch {
    pulse?.classList.add("late");
  } finally {
    loading = false;
    if (wanted) soon();
  }
}

function soon() {
  wanted = true;
  clearTimeout(timer);
  timer = setTimeout(load, Math.max(0, last + 1000 - Date.now()));
}

function listen() {
  source = new EventSource("/api/v1/events");
  const told = (event) => { if (about === "all" || event.type === "missed" || event.data.includes(about)) soon(); };
  for (const name of ["enqueued", "started", "done", "failed", "postponed", "cancelled", "dead", "rescued", "lost", "fenced", "gate", "probe", "missed"]) source.addEventListener(name, told);
  source.addEventListener("open", () => { if (pulse) { pulse.hidden = false; pulse.classList.remove("late"); } });
  source.addEventListener("error", () => pulse?.classList.add("late"));
}

export function start() {
  if (!about) return;
  listen();
  setInterval(() => { if (!document.hidden && Date.now() - last > 5000) soon(); }, 5000);
  document.addEventListener("visibilitychange", () => {
    source.close();
    clearTimeout(timer);
    if (!document.hidden) { listen(); soon(); }
  });
  window.addEventListener("pagehide", () => source.close());
}
