// Requests to this server, and its errors as exceptions.
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = sessionStorage.getItem("key");
  return key === null ? {} : { Authorization: `Bearer ${key}` };
}

// The body of a request: a form if there is a file, and otherwise JSON.
function bodyOf(values, options) {
  if (!Object.values(values).some(value => value instanceof File))
    return { body: JSON.stringify({ inputs: [values], ...options }), headers: { ...headers(), "Content-Type": "application/json" } };
  const form = new FormData();
  for (const [name, value] of Object.entries(values)) form.append(name, value);
  for (const [name, value] of Object.entries(options)) form.append(name, JSON.stringify(value));
  return { body: form, headers: headers() };
}

async function send(path, { values, options = {}, signal } = {}) {
  const init = values ? { method: "POST", ...bodyOf(values, options) } : { headers: headers() };
  let answer;
  try {
    answer = await fetch(path, { ...init, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer. It may have been stopped, or refused a file that is too large.");
  }
  if (answer.ok) return answer;
  const content = await answer.json().catch(() => null);
  throw new Refused(answer.status, content?.error?.message ?? `The server answered with status ${answer.status}.`);
}

export async function request(path, options = {}) {
  const answer = await send(path, options);
  return options.binary ? answer.blob() : answer.json();
}

// The server-sent events of an answer.
export async function* eventsOf(path, options) {
  const answer = await send(path, options);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const data = JSON.parse(part.slice(part.indexOf("data: ") + 6));
      if (data.error) throw new Refused(500, data.error.message);
      yield data;
    }
  }
}
