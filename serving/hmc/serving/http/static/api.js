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

async function call(path, body, signal) {
  const headers = { Accept: "application/json" };
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
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Failure(answer.code ?? "UNKNOWN", answer.message ?? `The server answered with status ${response.status}.`);
  }
  return answer;
}

const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value);
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

export const listLevels = (model) => call(`/v1/levels${query({ model })}`);

export const listModels = async () => (await call("/v1/models")).models ?? [];

export function translate({ text, level, model, target, beam }, signal) {
  const selector = { name: level, model, targetLanguage: target };
  const options = { beamSize: beam, alignment: true };
  return call("/v1/translate", { texts: [text], level: selector, options, returnSegments: true }, signal);
}
