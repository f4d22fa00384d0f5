// Something that is done to many: how far it is, line by line, as the server sends it. If it cannot begin or go on, it says why and can
// be tried again: what is done is not done twice.

export function start() {
  const form = document.querySelector("form[data-bulk]");
  if (!form) return;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(form);
  });
}

const find = (name) => document.querySelector(`[data-${name}]`);

async function run(form) {
  const controls = form.querySelectorAll("button, input, textarea");
  const body = new URLSearchParams(new FormData(form));
  for (const control of controls) control.disabled = true;
  find("wrong").hidden = true;
  let begun = false;
  try {
    const to = form.getAttribute("action"); // form.action is the field of that name
    const answer = await fetch(to, { method: "POST", body, redirect: "manual", headers: { accept: "application/x-ndjson" } });
    if (answer.type === "opaqueredirect") return again(controls, "login");
    if (!answer.ok) throw new Error(await reason(answer));
    begun = true;
    find("progress").hidden = false;
    for await (const line of lines(answer.body)) follow(line);
  } catch (problem) {
    again(controls, begun ? "broken" : "refused", problem.message);
  }
}

function follow(line) {
  const [bar, figures, end] = ["bar", "figures", "end"].map(find);
  const seen = line.done + line.requested + line.failed + Object.values(line.skipped ?? {}).reduce((a, b) => a + b, 0);
  if (line.state === "broken") throw new Error(line.problem.detail);
  bar.value = seen;
  if (line.state === "finished") bar.value = bar.max = Math.max(seen, 1);
  for (const part of figures.querySelectorAll("[data-figure]")) {
    const name = part.dataset.figure;
    part.textContent = name === "skipped" ? seen - line.done - line.requested - line.failed : line[name];
  }
  if (line.state === "finished") end.hidden = false;
}

// What the server says is wrong, or at least the number of it.
async function reason(answer) {
  const said = await answer.json().catch(() => ({}));
  return said.detail ?? `${answer.status} ${answer.statusText}`;
}

// It can be tried again, after what is wrong was read.
function again(controls, why, detail) {
  for (const control of controls) control.disabled = false;
  const wrong = find("wrong");
  wrong.textContent = `${wrong.dataset[why]} ${detail ?? ""}`;
  if (why === "login") {
    const link = document.createElement("a");
    link.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = wrong.dataset.logIn;
    wrong.append(link);
  }
  wrong.hidden = false;
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
  }
}
