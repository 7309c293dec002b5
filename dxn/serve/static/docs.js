// The OpenAPI description of this server as a page.
import { at, make } from "./elements.js";
import { request } from "./requests.js";

const TYPES = { string: "text", number: "number", integer: "whole number", boolean: "true or false", object: "object", null: "null" };
const LIMITS = { minimum: "at least", exclusiveMinimum: "more than", maximum: "at most", maxLength: "characters: at most", default: "default:" };
let schemas = {};  // by name

const resolved = schema => schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema ?? {};
const variants = schema => resolved(schema).anyOf?.map(resolved) ?? [resolved(schema)];

// The type of a value in words, such as "text or number".
function typeOf(schema) {
  const names = variants(schema).map(each => {
    if (each.enum) return each.enum.map(value => JSON.stringify(value)).join(" or ");
    if (each.properties?.base64) return 'file as {"base64": "…"}';
    if (each.type === "array") return Object.keys(each.items ?? {}).length ? `list (${typeOf(each.items)})` : "list";
    return TYPES[each.type] ?? "any value";
  });
  return [...new Set(names)].join(" or ");
}

// One row per key of an object, and of the objects in its lists.
function addFields(table, schema, path = "") {
  const { properties = {}, required = [] } = resolved(schema);
  for (const [name, field] of Object.entries(properties)) {
    const row = make(table, "tr", null), all = [resolved(field), ...variants(field)];
    make(make(row, "th", null, { scope: "row" }), "code", path + name);
    make(row, "td", `${typeOf(field)}${required.includes(name) ? ", required" : ""}`);
    const limits = Object.entries(LIMITS).flatMap(([key, word]) => {
      const value = all.map(each => each[key]).find(each => each !== undefined && each !== null);
      return value === undefined ? [] : [`${word} ${JSON.stringify(value)}`];
    });
    make(row, "td", [resolved(field).description, limits.join(", ")].filter(Boolean).join(" "));
    for (const each of all.slice(1)) {
      if (each.type === "array") addFields(table, each.items, `${path}${name}[].`);
      else if (!each.properties?.base64) addFields(table, each, `${path}${name}.`);
    }
  }
}

function addTable(box, title, schema) {
  if (!Object.keys(resolved(schema).properties ?? {}).length) return;
  make(box, "h3", title);
  addFields(make(box, "table", null), schema);
}

function show(path, method, { summary, requestBody, responses = {} }) {
  const box = make(at("operations"), "section", null, { class: "wide" });
  make(box, "h2", `${method.toUpperCase()} ${path}`);
  make(box, "p", summary ?? "");
  const bodies = requestBody?.content ?? {}, kinds = Object.keys(bodies);
  if (kinds.length) addTable(box, `Body: ${kinds.join(", or a part of the form per value: ")}`, bodies[kinds[0]].schema);
  addTable(box, "Answer: application/json", responses[200]?.content?.["application/json"]?.schema);
  const details = make(box, "details", null);
  make(details, "summary", "status codes");
  const table = make(details, "table", null);
  for (const [status, { description }] of Object.entries(responses)) {
    const row = make(table, "tr", null);
    make(row, "th", status, { scope: "row" });
    make(row, "td", description);
  }
}

try {
  const { paths, components } = await request("openapi.json");
  schemas = components?.schemas ?? {};
  for (const [path, methods] of Object.entries(paths))
    for (const [method, operation] of Object.entries(methods)) show(path, method, operation);
} catch (error) {
  at("problem").textContent = error.status === 401 ? `${error.message} (or enter the key on the first page)` : error.message;
  at("problem").hidden = false;
}
