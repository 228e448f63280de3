// Calls of the server. An error has the server's code and message.

const STORED = "hmc-token";

export class Failure extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export function setToken(token) {
  sessionStorage.setItem(STORED, token);
}

const MIB = 2 ** 20;

// Messages of the server name fields of a request. A reader has one text.
function said(message, sent) {
  const limit = message.match(/^texts?(?:\[0\])? is longer than (\d+) bytes/)?.[1];
  if (!limit) return message.replace(/^texts?(?:\[0\])? (?=is |has )/, "The text ");
  const size = new TextEncoder().encode(sent?.text ?? sent?.texts?.[0] ?? "").length;
  return `The text is too long: it has ${(size / MIB).toFixed(1)} MiB, and the server takes ${(limit / MIB).toFixed(1)} MiB at once. Translate it in parts.`;
}

const failure = (answer, status, sent) => new Failure(answer.code ?? "UNKNOWN", answer.message ? said(answer.message, sent) : `The server answered with status ${status}.`);

// Sends a request. Throws Failure if there is no answer, or one with an error.
async function ask(path, body, signal, accept = "application/json") {
  const headers = { Accept: accept };
  const token = sessionStorage.getItem(STORED);
  if (token) headers.Authorization = `Bearer ${token}`;
  const init = { headers, signal };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(init, { method: "POST", body: JSON.stringify(body) });
  }
  let response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("UNAVAILABLE", "The server does not answer. Is it still running?");
  }
  if (!response.ok) throw failure(await response.json().catch(() => ({})), response.status, body);
  return response;
}

const call = async (path, body, signal) => (await ask(path, body, signal)).json();

const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value);
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

export const listLevels = (model) => call(`/v1/levels${query({ model })}`);

export const listModels = async () => (await call("/v1/models")).models ?? [];

const asked = ({ level, model, target, beam }, alignment = true) => ({
  level: { name: level, model, targetLanguage: target },
  options: { beamSize: beam, alignment },
});

export function translate(request, signal) {
  return call("/v1/translate", { texts: [request.text], ...asked(request), returnSegments: true }, signal);
}

// The same text without alignment, which takes longer: what most programs ask for.
export function timeOf(request, signal) {
  return call("/v1/translate", { texts: [request.text], ...asked(request, false) }, signal);
}

// The same request as a command. The token is left out: the shell has it in $HMC_TOKEN.
export function asCurl({ text, level, model, target, beam }) {
  const body = JSON.stringify({ texts: [text], level: { name: level, model, targetLanguage: target }, options: { beamSize: beam } });
  const token = sessionStorage.getItem(STORED) ? ` \\\n  -H "Authorization: Bearer $HMC_TOKEN"` : "";
  const quoted = body.replaceAll("'", String.raw`'\''`);
  return `curl ${location.origin}/v1/translate -H 'Content-Type: application/json'${token} \\\n  -d '${quoted}'`;
}

// Yields the pieces of a long text, each as soon as it is translated. All pieces together are the translation.
export async function* translateDocument(request, signal) {
  const response = await ask("/v1/document", { text: request.text, ...asked(request) }, signal, "text/event-stream");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure("UNAVAILABLE", "The server stopped in the middle of the translation. Is it still running?");
    }
    if (read.done) throw new Failure("UNAVAILABLE", "The server stopped in the middle of the translation.");
    const events = (rest + read.value).split("\n\n");
    rest = events.pop();
    for (const one of events) {
      const [, kind, data] = one.match(/^(?:event: (\w+)\n)?data: (.*)$/s) ?? [];
      if (kind === "end") return;
      if (kind === "error") throw failure(JSON.parse(data), response.status, { text: request.text });
      if (data) yield JSON.parse(data);
    }
  }
}
