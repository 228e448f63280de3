// A translation, and below it its source: pointing at a word, or moving to it by keyboard, shows where it comes from.

import { byId, make } from "./dom.js";
import { align } from "./words.js";

const SHOWN = 0.08; // smaller shares are not shown

export function reading(text, translation, { source, target, level }) {
  const { source: from, target: to, weights } = align(text, translation);
  const sourceWords = new Map(), targetWords = [];
  const read = make("p", { class: "from", lang: source, "aria-label": "Source" }, ...from.map((span) => {
    const word = make("span", span.word < 0 ? {} : { class: "word" }, span.text);
    if (span.word >= 0) {
      sourceWords.set(span.word, word);
      word.addEventListener("pointerenter", () => lightTargets(span.word));
      word.addEventListener("pointerleave", clear);
    }
    return word;
  }));
  const said = make("p", {
    class: "to", lang: target, role: "group", "aria-label": `Translation at level ${level}. Arrow keys move between words.`,
  }, ...to.map((span) => {
    const word = make("span", span.word < 0 ? {} : { class: "word", tabindex: targetWords.length ? -1 : 0 }, span.text);
    if (span.word >= 0) {
      const index = targetWords.push(word) - 1;
      word.addEventListener("pointerenter", () => lightSources(index));
      word.addEventListener("pointerleave", clear);
      word.addEventListener("focus", () => { lightSources(index); announce(index); });
      word.addEventListener("blur", clear);
      word.addEventListener("click", () => word.focus());
      word.addEventListener("keydown", (event) => move(event, index));
    }
    return word;
  }));

  function clear() {
    for (const word of [...sourceWords.values(), ...targetWords]) {
      word.style.removeProperty("--weight");
      word.classList.remove("lit", "here");
    }
  }

  function light(word, weight) {
    if (!word || weight < SHOWN) return;
    word.style.setProperty("--weight", Math.min(1, 0.15 + 0.85 * weight).toFixed(3));
    word.classList.add("lit");
  }

  function lightSources(index) {
    clear();
    targetWords[index].classList.add("here");
    for (const [from, weight] of weights[index] ?? []) light(sourceWords.get(from), weight);
  }

  function lightTargets(from) {
    clear();
    targetWords.forEach((word, index) => light(word, weights[index]?.get(from) ?? 0));
  }

  function announce(index) {
    const shares = [...(weights[index] ?? [])].filter(([, weight]) => weight >= SHOWN).sort((a, b) => b[1] - a[1]);
    const named = shares.slice(0, 3).map(([from, weight]) => `${sourceWords.get(from).textContent} ${Math.round(100 * weight)} %`);
    byId("aligned").textContent = named.length ? `${targetWords[index].textContent}: ${named.join(", ")}` : "";
  }

  function move(event, index) {
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: targetWords.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = targetWords[Math.min(Math.max(to, 0), targetWords.length - 1)];
    targetWords[index].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  return [said, read];
}
