// Something that is done to many: how far it is, line by line, as the server sends it.

export function start() {
  const form = document.querySelector("form[data-bulk]");
  if (!form) return;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(form);
  });
}

async function run(form) {
  const find = (name) => document.querySelector(`[data-${name}]`);
  const [progress, bar, figures, end] = ["progress", "bar", "figures", "end"].map(find);
  const controls = form.querySelectorAll("button, input, textarea");
  const body = new URLSearchParams(new FormData(form));
  for (const control of controls) control.disabled = true;
  progress.hidden = false;
  try {
    const to = form.getAttribute("action"); // form.action is the field of that name
    const answer = await fetch(to, { method: "POST", body, headers: { accept: "application/x-ndjson" } });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    for await (const line of lines(answer.body)) {
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
  } catch (problem) {
    const wrong = find("wrong");
    wrong.textContent += ` ${problem.message}`;
    wrong.hidden = false;
  }
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
