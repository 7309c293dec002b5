// The current request as a command for the shell and as Python.
const MAX_LENGTH = 2000;  // characters of a text in the code

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
const shortened = text => text.length <= MAX_LENGTH ? text : `${text.slice(0, MAX_LENGTH)}…`;
// JSON is also a literal of Python, except for true, false and null, which no value contains.
const literal = value => JSON.stringify(value);

function sample(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, shortened(value)]));
}

const hasFile = values => Object.values(values).some(value => value instanceof File);

const KEY = '-H "Authorization: Bearer $DXN_API_KEY"';

// Commands that download the examples among the files, one per line.
function downloads(values, needsKey) {
  const files = Object.values(values).filter(value => value.source);
  return files.map(({ name, source }) => `curl${needsKey ? ` ${KEY}` : ""} -o ${quoted(name)} ${source}`);
}

export function curlOf(url, values, options, needsKey) {
  const parts = [`curl ${url}`];
  if (needsKey) parts.push(KEY);
  if (hasFile(values)) {
    for (const [name, value] of Object.entries(values))
      parts.push(value instanceof File ? `-F ${quoted(`${name}=@${value.name}`)}` : `--form-string ${quoted(`${name}=${shortened(value)}`)}`);
    for (const [name, value] of Object.entries(options)) parts.push(`-F ${name}=${value}`);
  } else {
    parts.push("-H 'Content-Type: application/json'");
    parts.push(`-d ${quoted(JSON.stringify({ inputs: [sample(values)], ...options }))}`);
  }
  return [...downloads(values, needsKey), parts.join(" \\\n  ")].join("\n");
}

// A request with its whole body, in which a file is shortened.
export function curlOfBody(url, body, needsKey) {
  const content = JSON.stringify(body, (_, value) => typeof value === "string" ? shortened(value) : value);
  return [`curl ${url}`, ...(needsKey ? [KEY] : []), `-d ${quoted(content)}`].join(" \\\n  ");
}

export function pythonOf(url, values, options, needsKey) {
  const lines = [...downloads(values, needsKey).map(line => `# ${line}`), ...(needsKey ? ["import os", ""] : []), "import requests", ""];
  const key = needsKey ? '    headers={"Authorization": f"Bearer {os.environ[\'DXN_API_KEY\']}"},\n' : "";
  let content;
  if (hasFile(values)) {
    const texts = Object.entries(values).filter(([, value]) => !(value instanceof File));
    const files = Object.entries(values).filter(([, value]) => value instanceof File);
    const data = { ...sample(Object.fromEntries(texts)), ...options };
    const opened = files.map(([name, file]) => `${literal(name)}: open(${literal(file.name)}, "rb")`).join(", ");
    content = (Object.keys(data).length ? `    data=${literal(data)},\n` : "") + `    files={${opened}},\n`;
  } else {
    content = `    json=${literal({ inputs: [sample(values)], ...options })},\n`;
  }
  return `${lines.join("\n")}\nanswer = requests.post(\n    ${literal(url)},\n${key}${content}    timeout=30,\n)\nprint(answer.json())`;
}
