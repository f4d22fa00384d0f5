// Times as the reader has them: in their zone, and how long ago. The server's clock counts, not this machine's.

const root = document.documentElement;
const lang = root.lang || undefined;
let ahead = Number(root.dataset.now) - Date.now();
const relative = new Intl.RelativeTimeFormat(lang, { numeric: "auto", style: "short" });
const whole = new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const exact = new Intl.DateTimeFormat(lang, { dateStyle: "full", timeStyle: "long", hourCycle: "h23" });
const clock = new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const seconds = new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const sameDay = (time) => time.toDateString() === new Date(Date.now() + ahead).toDateString();
const when = (time) => (sameDay(time) ? seconds : whole).format(time); // what is of today needs no date
const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function ago(time) {
  const away = Math.round((time - Date.now() - ahead) / 1000);
  const [unit, size] = units.find(([, size]) => Math.abs(away) >= size) ?? units.at(-1);
  return relative.format(Math.trunc(away / size), unit);
}

const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };

// All times below an element.
export function show(below = document) {
  for (const element of below.querySelectorAll("time[data-show]")) {
    const time = new Date(element.dateTime);
    if (!element.title) element.title = exact.format(time);
    const shown = element.dataset.show;
    put(element, shown === "ago" ? ago(time) : shown === "at" ? when(time) : `${when(time)} · ${ago(time)}`);
  }
  for (const element of below.querySelectorAll("text[data-time]")) put(element, (element.dataset.exact ? seconds : clock).format(Number(element.dataset.time)));
}

// A page that was loaded anew tells what time it is.
export function sync(now) {
  if (now) ahead = Number(now) - Date.now();
}

export function start() {
  show();
  setInterval(() => { if (!document.hidden) show(); }, 1000);
}
