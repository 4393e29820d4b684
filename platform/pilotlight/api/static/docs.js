// The page of the OpenAPI document: one form for each operation. Everything is text nodes, nothing is kept.

const METHODS = ["get", "post", "put", "patch", "delete"];

const described = await (await fetch("/api/v1/openapi.json")).json();

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function resolved(schema) {
  const name = schema?.$ref?.replace("#/components/schemas/", "");
  return name ? resolved(described.components.schemas[name]) : (schema ?? {});
}

// A body to begin with: required fields and defaults, four levels deep at most.
function example(given, depth = 0) {
  const schema = resolved(given);
  if ("default" in schema) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return example(schema.anyOf[0], depth + 1);
  if (schema.type === "object") {
    const required = new Set(schema.required ?? []);
    const shown = Object.entries(schema.properties ?? {}).filter(([name, each]) => required.has(name) || "default" in each);
    return depth > 3 ? {} : Object.fromEntries(shown.map(([name, each]) => [name, example(each, depth + 1)]));
  }
  if (schema.type === "array") return [];
  if (schema.type === "boolean") return false;
  return schema.type === "integer" || schema.type === "number" ? 0 : "";
}

function address(path, fields) {
  const query = new URLSearchParams();
  let made = path;
  for (const [parameter, input] of fields) {
    if (parameter.in === "path") made = made.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
    else if (input.value) query.set(parameter.name, input.value);
  }
  return query.size ? `${made}?${query}` : made;
}

async function send(method, path, body) {
  const token = document.getElementById("token").value.trim();
  const headers = { ...(token && { Authorization: `Bearer ${token}` }), ...(body && { "Content-Type": "application/json" }) };
  const answer = await fetch(path, { method: method.toUpperCase(), headers, body, credentials: "omit" });
  const text = await answer.text();
  const again = answer.headers.get("Retry-After");
  const head = `${answer.status} ${answer.statusText}${again ? `, ask again in ${again} s` : ""}`;
  try {
    return `${head}\n${JSON.stringify(JSON.parse(text), null, 2)}`;
  } catch {
    return `${head}\n${text}`;
  }
}

function operation(path, method, told) {
  const fields = (told.parameters ?? []).map((parameter) => [parameter, element("input", { name: parameter.name })]);
  const labels = fields.map(([parameter, input]) => element("label", {}, `${parameter.name} (${parameter.in}) `, input));
  const schema = told.requestBody?.content["application/json"].schema;
  const body = schema && element("textarea", { value: JSON.stringify(example(schema), null, 2), ariaLabel: "body" });
  const answer = element("pre", { hidden: true });
  const button = element("button", { type: "button" }, "Send");
  button.addEventListener("click", async () => {
    answer.hidden = false;
    answer.textContent = "…";
    answer.textContent = await send(method, address(path, fields), body?.value).catch((error) => String(error));
  });
  const head = element("summary", {}, element("code", {}, method.toUpperCase()), element("code", {}, path), element("span", {}, told.summary));
  return element("details", {}, head, ...labels, ...(body ? [body] : []), button, answer);
}

const byTag = new Map(described.tags.map((tag) => [tag.name, []]));
for (const [path, methods] of Object.entries(described.paths)) {
  for (const method of METHODS.filter((each) => each in methods)) {
    byTag.get(methods[method].tags[0]).push(operation(path, method, methods[method]));
  }
}
const main = document.getElementById("operations");
for (const [tag, operations] of byTag) main.append(element("section", {}, element("h2", {}, tag), ...operations));
