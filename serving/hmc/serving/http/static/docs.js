// Writes the page of the API from its OpenAPI document.

import { byId, make } from "./dom.js";

const nameOf = (reference) => reference.split("/").at(-1);

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return make("a", { href: `#schema-${nameOf(schema.$ref)}` }, nameOf(schema.$ref));
  if (schema.type === "array") return make("span", {}, "list of ", typeOf(schema.items));
  if (schema.anyOf) return make("span", {}, ...schema.anyOf.flatMap((one, index) => (index ? [" or ", typeOf(one)] : [typeOf(one)])));
  if (schema.enum) return schema.enum.join(", ");
  return [schema.type].flat().join(" or ");
}

function fields(properties) {
  return make("dl", {}, ...Object.entries(properties ?? {}).flatMap(([name, schema]) => [
    make("dt", {}, make("code", {}, name), make("span", { class: "quiet" }, typeOf(schema))),
    make("dd", {}, schema.description ?? ""),
  ]));
}

const EXAMPLE = {
  Translate: { texts: ["A man rides a bicycle."], level: { auto: true } },
  TranslateTokens: { text: "A man rides a bicycle." },
  TranslateDocument: { text: "A man rides a bicycle. A dog runs after him." },
  Score: { texts: ["A dog."], references: ["Ein Hund."] },
};

function curl(path, verb, operation) {
  const body = EXAMPLE[operation.operationId];
  if (verb === "get") return `curl ${location.origin}${path}`;
  if (!body) return null;
  return `curl ${location.origin}${path} -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(body)}'`;
}

function operationOf(path, verb, operation) {
  const example = curl(path, verb, operation);
  const content = operation.requestBody?.content ?? {};
  const [sent] = Object.values(content);
  const answer = operation.responses["200"];
  return make("details", {},
    make("summary", {}, make("span", { class: "verb" }, verb.toUpperCase()), make("code", {}, path),
      make("span", { class: "quiet" }, operation.summary)),
    make("div", { class: "inside" },
      make("p", {}, operation.description ?? ""),
      sent ? make("p", {}, "Sends ", typeOf(sent.schema), ` as ${Object.keys(content).join(" or ")}.`) : null,
      make("p", {}, "Gets ", ...Object.entries(answer.content).flatMap(([kind, one], index) => [index ? ", or " : "", typeOf(one.schema), ` as ${kind}`]), ". ", answer.description.startsWith("A ") ? "" : answer.description),
      operation.parameters?.length ? fields(Object.fromEntries(operation.parameters.map((one) => [one.name, { ...one.schema, description: one.description }]))) : null,
      example ? make("pre", { tabindex: 0 }, example) : null,
      make("p", { class: "quiet" }, "Errors: ", Object.keys(operation.responses).filter((status) => status !== "200").join(", ") || "none", ".")));
}

const response = await fetch("/openapi.json");
const api = await response.json();
byId("about").textContent = api.info.description.replaceAll("`", "");
byId("server").textContent = `version ${api.info.version}`;
const groups = new Map();
for (const [path, operations] of Object.entries(api.paths)) {
  for (const [verb, operation] of Object.entries(operations)) {
    const tag = operation.tags[0];
    groups.set(tag, [...(groups.get(tag) ?? []), operationOf(path, verb, operation)]);
  }
}
for (const [tag, items] of groups) byId("paths").append(make("h2", {}, tag), ...items);
for (const [name, schema] of Object.entries(api.components.schemas).sort(([a], [b]) => a.localeCompare(b))) {
  byId("schemas").append(make("details", { id: `schema-${name}` },
    make("summary", {}, make("code", {}, name)),
    make("div", { class: "inside" }, make("p", {}, schema.description ?? ""), fields(schema.properties))));
}
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", openTarget);
openTarget();
