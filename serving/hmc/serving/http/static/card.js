// One level's card: what it says, how long it took, how good it is, and its heads.

import { copy, draw, make } from "./dom.js";
import { headsMap } from "./heads.js";
import { Reading } from "./reading.js";

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;

const time = (ms) => (ms >= 9950 ? `${(ms / 1000).toFixed(0)} s` : ms >= 1000 ? `${(ms / 1000).toFixed(1)} s` : ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`);

function number(label, value, note, title) {
  return make("div", { title }, make("dt", {}, label), make("dd", {}, value, note ? make("small", {}, ` ${note}`) : null));
}

function quality(level) {
  const found = level.quality;
  if (!found) return number("BLEU", "–", "not measured", "The bundle has no scores. Compile it with --eval.");
  const title = `On ${found.testSet}, ${found.sentences} sentences, beam ${found.beam}. Against ${found.referenceLevel}: `
    + `${signed(found.bleuDelta)}, 95 % interval ${signed(found.ciLow)} to ${signed(found.ciHigh)}.`;
  const delta = level.name === found.referenceLevel ? "" : signed(found.bleuDelta);
  return number(`BLEU, ${found.testSet}`, found.bleu.toFixed(1), delta, title);
}

export class Card {
  constructor(level, { perLayer, full }) {
    this.level = level;
    this.said = make("div", { class: "said" });
    this.bar = draw("rect", { x: 0, y: 0, width: 0, height: 4 });
    this.took = number("Time", "–");
    this.took.append(draw("svg", { class: "gauge", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" }, this.bar));
    this.copy = make("button", { class: "plain", type: "button", onclick: () => copy(this.text, this.copy), "aria-label": `Copy the translation at level ${level.name}`, hidden: true }, "Copy");
    const id = `level-${level.name}`;
    this.element = make("article", { class: "card", "aria-labelledby": id },
      make("header", {},
        make("h2", { id }, level.name),
        make("span", { class: "quiet" }, `${level.heads} of ${full} heads · ${level.precision}`),
        this.copy),
      this.said,
      make("dl", { class: "numbers" }, this.took, quality(level)),
      headsMap(level, perLayer));
  }

  wait() {
    this.element.setAttribute("aria-busy", "true");
    if (this.text === undefined) {
      this.said.replaceChildren(make("span", { class: "shimmer", "aria-label": "Translating" }), make("span", { class: "shimmer short" }));
    }
  }

  // Begins a translation that comes in pieces, and adds one to it.
  begin(languages) {
    this.text = "";
    this.reading = undefined;
    this.growing = make("p", { class: "to", lang: languages.target });
    this.said.replaceChildren(this.growing, make("span", { class: "shimmer short", "aria-label": "Translating" }));
    this.element.removeAttribute("aria-busy");
  }

  grow(piece) {
    this.text += piece;
    this.growing.append(piece);
  }

  show(text, answer, languages) {
    const [translation] = answer.translations;
    this.text = translation.text;
    this.element.removeAttribute("aria-busy");
    const warning = translation.sourceTruncated ? "The end of the text was cut off: it is longer than the model reads."
      : translation.hitMaxLength ? "The translation reached its length limit and may be incomplete." : null;
    this.reading = new Reading(text, translation, languages.target, this.level.name);
    this.said.replaceChildren(
      this.reading.element,
      ...(translation.segments?.length > 1 ? [make("p", { class: "quiet sentences" }, `${translation.segments.length} sentences`)] : []),
      ...(warning ? [make("p", { class: "warned" }, warning)] : []));
    this.copy.hidden = !navigator.clipboard; // browsers have it with HTTPS and at localhost only
  }

  // The time of a translation that came in pieces, as the browser saw it.
  timeOfDocument(milliseconds) {
    this.milliseconds = milliseconds;
    this.took.querySelector("dd").textContent = time(milliseconds);
    this.took.title = `From the request to the last piece ${milliseconds.toFixed(0)} ms, as the browser saw it; the way to the server and waiting there count`;
  }

  // The time in which the server computed an answer, without what it waited for other requests.
  time(answer) {
    this.milliseconds = answer.computeMs;
    this.took.querySelector("dd").textContent = time(answer.computeMs);
    this.took.title = `Computing ${answer.computeMs.toFixed(1)} ms, as the server measured it; it had waited ${answer.queueMs.toFixed(1)} ms before`;
  }

  // Lights the words that come from a word of the source; -1 lights none.
  light(sourceWord) {
    this.reading?.lightTargets(sourceWord);
  }

  fail(error, again) {
    this.text = this.milliseconds = this.reading = undefined;
    this.copy.hidden = true;
    this.element.removeAttribute("aria-busy");
    this.took.querySelector("dd").textContent = "–";
    this.scale(0);
    this.said.replaceChildren(make("div", { class: "failed", role: "alert" }, error.message,
      make("button", { type: "button", onclick: again }, "Try again")));
  }

  // Draws the time against the longest of all cards, in milliseconds.
  scale(longest) {
    this.bar.setAttribute("width", longest && this.milliseconds ? (100 * this.milliseconds) / longest : 0);
  }
}
