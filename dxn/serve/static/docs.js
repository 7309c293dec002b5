// The OpenAPI description of this server as a page.
import { at, make } from "./elements.js";
import { request } from "./requests.js";

function show(path, method, operation) {
  const box = make(at("operations"), "section", null, { class: "wide" });
  make(box, "h2", `${method.toUpperCase()} ${path}`);
  make(box, "p", operation.summary ?? "");
  for (const [kind, { schema }] of Object.entries(operation.requestBody?.content ?? {})) {
    const details = make(box, "details", null);
    make(details, "summary", `body as ${kind}`);
    make(details, "pre", JSON.stringify(schema, null, 2), { tabindex: "0" });
  }
  const answers = [];
  const table = make(box, "table", null);
  for (const [status, { description, content }] of Object.entries(operation.responses ?? {})) {
    const row = make(table, "tr", null);
    make(row, "th", status, { scope: "row" });
    make(row, "td", description);
    const schema = status === "200" && content?.["application/json"]?.schema;
    if (schema && Object.keys(schema).length) answers.push(schema);
  }
  for (const schema of answers) {
    const details = make(box, "details", null);
    make(details, "summary", "answer as application/json");
    make(details, "pre", JSON.stringify(schema, null, 2), { tabindex: "0" });
  }
}

try {
  const { paths } = await request("openapi.json");
  for (const [path, methods] of Object.entries(paths))
    for (const [method, operation] of Object.entries(methods)) show(path, method, operation);
} catch (error) {
  at("problem").textContent = error.status === 401 ? `${error.message} (or enter the key on the first page)` : error.message;
  at("problem").hidden = false;
}
