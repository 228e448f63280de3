// The source, behind the field in which it is written: cards light its words there, so it stands on the page once.

import { byId, make } from "./dom.js";

const text = byId("text"), mirror = byId("mirror");
let words = new Map(), shown = "";

// Lays out the words of a text. spans: [{ text, word }], where word is an index or -1. Nothing is laid out for a text
// that has been changed meanwhile.
export function showSource(spans) {
  const whole = spans.map((span) => span.text).join("");
  const now = whole === text.value ? JSON.stringify(spans) : "";
  if (now === shown) return;
  forgetSource();
  if (!now) return;
  shown = now;
  mirror.replaceChildren(...spans.map((span) => {
    const word = make("span", span.word < 0 ? {} : { class: "word" }, span.text);
    if (span.word >= 0) words.set(span.word, word);
    return word;
  }));
  mirror.scrollTop = text.scrollTop;
}

function forgetSource() {
  words = new Map();
  shown = "";
  mirror.replaceChildren();
}

export const sourceWord = (index) => words.get(index);

export function clearSource() {
  for (const word of words.values()) {
    word.style.removeProperty("--weight");
    word.classList.remove("lit");
  }
}

// Calls `entered` with the index of the source word under the pointer, and with -1 when there is none any more.
export function watchSource(entered) {
  let under = -1;
  const enter = (index) => {
    if (index !== under) entered(index);
    under = index;
  };
  text.addEventListener("pointermove", (event) => {
    const found = document.elementsFromPoint(event.clientX, event.clientY);
    enter([...words].find(([, word]) => found.includes(word))?.[0] ?? -1);
  });
  text.addEventListener("pointerleave", () => enter(-1));
}

text.addEventListener("input", forgetSource);
text.addEventListener("scroll", () => { mirror.scrollTop = text.scrollTop; });
