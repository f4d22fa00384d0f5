// Shows openapi.json: every route with its parameters, its body and its answers, and a form to try it.
"use strict";

const make = (tag, props = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), props);
  element.append(...children.filter((child) => child !== null));
  return element;
};

let api;
const resolved = (schema) =>
  schema && schema.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema;

// A schema as an example of what it describes; depth ends those that contain themselves.
function example(schema, depth = 0) {
  schema = resolved(schema) || {};
  if (schema.example !== undefined) return schema.example;
  const one = (schema.oneOf || schema.anyOf || []).find((s) => s.type !== "null");
  if (one) return example(one, depth);
  if (schema.enum) return schema.enum[0];
  const type = Array.isArray(schema.type) ? schema.type.find((t) => t !== "null") : schema.type;
  if (schema.properties && depth < 4) {
    return Object.fromEntries(Object.entries(schema.properties).map(([name, s]) => [name, example(s, depth + 1)]));
  }
  if (type === "array") return depth < 4 ? [example(schema.items, depth + 1)] : [];
  if (type === "integer" || type === "number") return schema.minimum || 0;
  if (type === "boolean") return false;
  if (type === "string") return schema.format === "date-time" ? "2026-01-01T00:00:00Z" : "";
  return {};
}

const firstOf = (content) => Object.entries(content || {})[0];
const pretty = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

function parameters(list) {
  if (!list || !list.length) return null;
  const rows = list.map((p) =>
    make("tr", {}, make("td", {}, make("code", { textContent: p.name })), make("td", { textContent: p.in }),
      make("td", {}, make("input", { name: p.name })), make("td", { textContent: p.description || "" })));
  return make("table", {}, make("tbody", {}, ...rows));
}

function answers(responses) {
  const rows = Object.entries(responses).map(([status, r]) => {
    const [, content] = firstOf(r.content) || [];
    const isGood = status.startsWith("2");
    return make("tr", {}, make("td", {}, make("code", { textContent: status })), make("td", {}, r.description || "",
      isGood && content ? make("pre", { textContent: pretty(example(content.schema)) }) : null));
  });
  return make("table", {}, make("tbody", {}, ...rows));
}

async function send(method, path, form, body, kind, out) {
  const query = new URLSearchParams();
  for (const input of form.querySelectorAll("input")) {
    if (!input.value) continue;
    if (path.includes(`{${input.name}}`)) path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else query.set(input.name, input.value);
  }
  const headers = { authorization: `Bearer ${document.getElementById("token").value}` };
  if (body) headers["content-type"] = kind;
  out.textContent = "…";
  try {
    const answer = await fetch(path + (query.size ? `?${query}` : ""), { method, headers, body: body && body.value });
    const text = await answer.text();
    let shown = text;
    try { shown = pretty(JSON.parse(text)); } catch { /* it is no JSON */ }
    out.textContent = `${answer.status} ${answer.statusText}\n${shown}`;
  } catch (e) {
    out.textContent = String(e);
  }
}

function operation(path, method, o) {
  const [kind, content] = firstOf(o.requestBody && o.requestBody.content) || [];
  const body = content ? make("textarea", { value: pretty(example(content.schema)), spellcheck: false }) : null;
  const form = make("div", {}, parameters(o.parameters));
  const out = make("pre", { hidden: true });
  const button = make("button", { textContent: "Try it" });
  button.addEventListener("click", () => {
    out.hidden = false;
    send(method.toUpperCase(), path, form, body, kind, out);
  });
  const stream = path.endsWith("/events");
  return make("details", {},
    make("summary", {}, make("code", { className: method, textContent: `${method.toUpperCase()} ` }),
      make("code", { textContent: path }), ` ${o.summary || ""}`),
    o.description ? make("p", { textContent: o.description }) : null, form,
    body ? make("p", {}, `Body (${kind}):`) : null, body,
    stream ? null : make("p", {}, button), out, make("p", { textContent: "Answers:" }), answers(o.responses));
}

async function show() {
  api = await (await fetch("/openapi.json")).json();
  const tags = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const [method, o] of Object.entries(item)) {
      const tag = (o.tags || ["other"])[0];
      tags.set(tag, [...(tags.get(tag) || []), operation(path, method, o)]);
    }
  }
  const sections = [...tags].flatMap(([tag, all]) => [make("h2", { textContent: tag }), ...all]);
  const said = api.info.description.split("\n\n").map((text) => make("p", { textContent: text.replace(/[`*]/g, "") }));
  document.getElementById("all").replaceChildren(...said, ...sections);
}

show().catch((e) => (document.getElementById("all").textContent = String(e)));
