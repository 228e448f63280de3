// The playground: reads the text and the choices, and keeps the cards up to date.

import { asCurl, listLevels, listModels, setToken, timeOf, translate, translateDocument } from "./api.js";
import { Card } from "./card.js";
import { byId, copy, language, make } from "./dom.js";
import { headsPerLayer } from "./heads.js";
import { Picker } from "./picker.js";
import { watchSource } from "./source.js";

const PAUSE_MS = 350; // a text is translated when nothing was typed for so long
const LONG = 300; // a text with more characters is shown piece by piece, and timed once
const EXAMPLES = {
  en: ["My neighbour plays the trumpet every Sunday morning.", "Select the cells whose contents you want to copy, then choose Edit.", "He has been learning German for three years and still mixes up the articles."],
  de: ["Ein brauner Hund läuft mit einem Stock im Maul am Strand entlang.", "Zwei Frauen lachen an einem Tisch in einem kleinen Café."],
  fr: ["Un chien brun court sur la plage avec un bâton dans la gueule.", "Deux femmes rient à une table dans un petit café."],
};

const text = byId("text");
const cards = new Map();
const opened = new Set(); // model, level and beam of requests that were answered
let server, picker, running, timer;

// What a model is called in the list: its languages, and its name where it says more.
function titleOf(model) {
  const [first, ...others] = model.targetLanguages;
  const title = `${language(model.sourceLanguage)} → ${others.length ? `${others.length + 1} languages` : language(first)}`;
  const alike = server.models.filter((other) => other.sourceLanguage === model.sourceLanguage && String(other.targetLanguages) === String(model.targetLanguages));
  return alike.length > 1 ? `${title} (${model.name})` : title;
}

function shownCards() {
  const chosen = picker.chosen;
  const about = { perLayer: headsPerLayer(server.levels), full: Math.max(...server.levels.map((level) => level.heads)) };
  for (const level of chosen) if (!cards.has(level.name)) cards.set(level.name, new Card(level, about));
  const shown = chosen.map((level) => cards.get(level.name));
  byId("cards").replaceChildren(...shown.map((card) => card.element));
  return shown;
}

function scale(shown) {
  const longest = Math.max(0, ...shown.map((card) => card.milliseconds ?? 0));
  for (const card of shown) card.scale(longest);
}

// One level after the other, so that their times can be compared. The time is that of a request of its own, without
// alignment. The first one of a kind opens graphs on the server, so it is sent twice.
async function translateAll() {
  clearTimeout(timer);
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const wanted = text.value.trim() ? text.value : "";
  byId("empty").hidden = Boolean(wanted);
  byId("clear").hidden = !text.value;
  byId("legend").hidden = byId("cards").hidden = !wanted;
  byId("same").hidden = true;
  if (!wanted) return;
  const shown = shownCards();
  byId("problem").hidden = shown.length > 0;
  byId("problem").textContent = shown.length ? "" : "Choose at least one level.";
  const { model, source } = server, target = byId("target").value;
  for (const card of shown) card.wait();
  for (const card of shown) {
    try {
      const request = { text: wanted, level: card.level.name, model: model.name, beam: Number(byId("beam").value) };
      if (model.targetLanguages.length > 1) request.target = target;
      if (wanted.length > LONG) {
        await showDocument(card, request, { source, target }, signal);
        scale(shown);
        showCurl(request);
        continue;
      }
      const answer = await translate(request, signal);
      card.show(wanted, answer, { source, target });
      const kind = JSON.stringify([model.name, request.level, request.beam]);
      if (!opened.has(kind)) await timeOf(request, signal);
      card.time(await timeOf(request, signal));
      opened.add(kind);
      scale(shown);
      showCurl(request);
    } catch (error) {
      if (signal.aborted) return;
      if (error.code === "UNAUTHENTICATED") return askForToken();
      card.fail(error, translateAll);
    }
  }
}

// Shows the last request as a command for a shell.
function showCurl(request) {
  byId("curl").textContent = asCurl(request);
  byId("same").hidden = false;
}

async function showDocument(card, request, languages, signal) {
  const began = performance.now();
  const segments = [];
  card.begin(languages);
  for await (const piece of translateDocument(request, signal)) {
    card.grow(piece.text ?? "");
    if (piece.segment) segments.push(piece.segment);
  }
  const translation = { text: card.text, segments, hitMaxLength: segments.some((one) => one.hitMaxLength) };
  card.show(request.text, { translations: [translation] }, languages);
  card.timeOfDocument(performance.now() - began);
}

function translateSoon() {
  clearTimeout(timer);
  byId("clear").hidden = !text.value;
  timer = setTimeout(translateAll, text.value.trim() ? PAUSE_MS : 0);
}

function showExamples() {
  const examples = EXAMPLES[server.source.split("-")[0]] ?? [];
  byId("examples").replaceChildren(...examples.map((example) => make("button", {
    type: "button", lang: server.source,
    onclick: () => { text.value = example; text.focus(); translateAll(); },
  }, example)));
}

async function openModel(model) {
  running?.abort();
  const listed = await listLevels(model.name);
  if (byId("model").value !== model.name) return; // another one was chosen meanwhile
  server = { models: server.models, model, levels: listed.levels, source: model.sourceLanguage, device: listed.device };
  cards.clear();
  byId("levels").replaceChildren();
  picker = new Picker(listed.levels, translateAll);
  byId("source-label").textContent = language(server.source);
  text.lang = server.source;
  byId("target").replaceChildren(...model.targetLanguages.map((tag) => make("option", { value: tag }, language(tag))));
  byId("target-field").hidden = model.targetLanguages.length < 2;
  sayServer();
  showExamples();
  await translateAll();
}

function sayServer() {
  byId("server").textContent = `${language(server.source)} → ${language(byId("target").value)} · ${server.device}`;
}

// Does what asks the server for more than translations, and shows why it could not.
async function opening(work) {
  byId("loading").hidden = !byId("desk").hidden;
  byId("token-form").hidden = byId("problem").hidden = true;
  try {
    await work();
  } catch (error) {
    if (error.code === "UNAUTHENTICATED") return askForToken();
    byId("desk").hidden = true;
    byId("problem").textContent = `${error.message} `;
    byId("problem").append(make("button", { type: "button", class: "plain", onclick: open }, "Try again"));
    byId("problem").hidden = false;
  } finally {
    byId("loading").hidden = true;
  }
}

const open = () => opening(async () => {
  server = { models: await listModels() };
  byId("model").replaceChildren(...server.models.map((model) => make("option", { value: model.name }, titleOf(model))));
  byId("model-field").hidden = server.models.length < 2;
  await openModel(server.models[0]);
  byId("desk").hidden = false;
  text.focus();
});

function askForToken() {
  const refused = byId("token").value !== "";
  byId("desk").hidden = true;
  byId("token-form").hidden = false;
  if (refused) byId("token-note").textContent = "The server does not take this token.";
  byId("token-note").classList.toggle("bad", refused);
  byId("token").focus();
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(byId("token").value);
  open();
});
text.addEventListener("input", translateSoon);
watchSource((word) => { for (const card of cards.values()) card.light(word); });
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translateAll();
});
byId("go").addEventListener("click", translateAll);
byId("beam").addEventListener("change", translateAll);
byId("model").addEventListener("change", () => opening(() => openModel(server.models.find((one) => one.name === byId("model").value))));
byId("target").addEventListener("change", () => { sayServer(); translateAll(); });
byId("copy-curl").hidden = !navigator.clipboard;
byId("copy-curl").addEventListener("click", () => copy(byId("curl").textContent, byId("copy-curl")));
byId("clear").addEventListener("click", () => { text.value = ""; text.focus(); translateAll(); });

open();
