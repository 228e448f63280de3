// A translation: pointing at a word, or moving to it by keyboard, shows in the source where it comes from.

import { byId, make } from "./dom.js";
import { clearSource, showSource, sourceWord } from "./source.js";
import { align } from "./words.js";

const SHOWN = 0.08; // smaller shares are not shown

function light(word, weight) {
  if (!word || weight < SHOWN) return;
  word.style.setProperty("--weight", Math.min(1, 0.15 + 0.85 * weight).toFixed(3));
  word.classList.add("lit");
}

export class Reading {
  constructor(text, translation, language, level) {
    const { source, target, weights } = align(text, translation);
    this.source = source;
    this.weights = weights;
    this.words = [];
    showSource(source);
    this.element = make("p", {
      class: "to", lang: language, role: "group", "aria-label": `Translation at level ${level}. Arrow keys move between words.`,
    }, ...target.map((span) => (span.word < 0 ? make("span", {}, span.text) : this.word(span.text))));
  }

  word(text) {
    const index = this.words.length;
    const word = make("span", { class: "word", tabindex: index ? -1 : 0 }, text);
    this.words.push(word);
    word.addEventListener("pointerenter", () => this.lightSources(index));
    word.addEventListener("pointerleave", () => this.clear());
    word.addEventListener("focus", () => { this.lightSources(index); this.announce(index); });
    word.addEventListener("blur", () => { this.clear(); byId("aligned").textContent = ""; });
    word.addEventListener("click", () => word.focus());
    word.addEventListener("keydown", (event) => this.move(event, index));
    return word;
  }

  clear() {
    clearSource();
    for (const word of this.words) {
      word.style.removeProperty("--weight");
      word.classList.remove("lit", "here");
    }
  }

  lightSources(index) {
    this.clear();
    showSource(this.source);
    this.words[index].classList.add("here");
    for (const [from, weight] of this.weights[index] ?? []) light(sourceWord(from), weight);
  }

  lightTargets(from) {
    this.clear();
    this.words.forEach((word, index) => light(word, this.weights[index]?.get(from) ?? 0));
  }

  announce(index) {
    const shares = [...(this.weights[index] ?? [])].filter(([from, weight]) => weight >= SHOWN && sourceWord(from)).sort((a, b) => b[1] - a[1]);
    const named = shares.slice(0, 3).map(([from, weight]) => `${sourceWord(from).textContent} ${Math.round(100 * weight)} %`);
    byId("aligned").textContent = named.length ? `${this.words[index].textContent}: ${named.join(", ")}` : "";
  }

  move(event, index) {
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: this.words.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = this.words[Math.min(Math.max(to, 0), this.words.length - 1)];
    this.words[index].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}
