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

const jsonBody = content => ({ body: JSON.stringify(content), headers: { ...headers(), "Content-Type": "application/json" } });

// The body of a request: a form if there is a file, and otherwise JSON.
function bodyOf(values, options) {
  if (!Object.values(values).some(value => value instanceof File)) return jsonBody({ inputs: [values], ...options });
  const form = new FormData();
  for (const [name, value] of Object.entries(values)) form.append(name, value);
  for (const [name, value] of Object.entries(options)) form.append(name, JSON.stringify(value));
  return { body: form, headers: headers() };
}

// content: the whole body, instead of the values of a sample and options.
async function send(path, { values, options = {}, content, signal } = {}) {
  const body = content ? jsonBody(content) : values && bodyOf(values, options);
  const init = body ? { method: "POST", ...body } : { headers: headers() };
  let answer;
  try {
    answer = await fetch(path, { ...init, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer. It may have been stopped, or refused a file that is too large.");
  }
  if (answer.ok) return answer;
  const refusal = await answer.json().catch(() => null);
  throw new Refused(answer.status, refusal?.error?.message ?? `The server answered with status ${answer.status}.`);
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
      const text = part.slice(part.indexOf("data: ") + 6);
      if (text === "[DONE]") return;
      const data = JSON.parse(text);
      if (data.error) throw new Refused(500, data.error.message);
      yield data;
    }
  }
}
