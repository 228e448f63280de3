// Which levels are compared.

import { byId, draw, make } from "./dom.js";

const MOST = 6; // levels that are chosen at first, and the default one

// The levels that no other one beats, from the best to the fastest: those in the precision of the default level, if there are
// several, which differ in heads and layers alone. Of many, one of each few.
function firstChoice(levels) {
  const start = levels.find((level) => level.isDefault) ?? levels[0];
  const best = levels.filter((level) => level.loaded && !level.beatenBy);
  const alike = best.filter((level) => level.precision === start.precision);
  const steps = alike.length > 1 ? alike : best;
  const some = steps.filter((_, place) => place % Math.ceil(steps.length / MOST) === 0);
  return new Set([start, ...some].map((level) => level.name));
}

export class Picker {
  constructor(levels, onchange) {
    const full = Math.max(1, ...levels.map((level) => level.heads));
    const first = firstChoice(levels);
    this.boxes = levels.map((level) => {
      const box = make("input", { type: "checkbox", value: level.name, onchange });
      box.checked = first.has(level.name);
      const share = draw("svg", { class: "share", viewBox: "0 0 26 6", "aria-hidden": "true" },
        draw("rect", { class: "all", width: 26, height: 6, rx: 3 }),
        draw("rect", { class: "open", width: Math.max(4, (26 * level.heads) / full), height: 6, rx: 3 }));
      const beaten = level.beatenBy ? `, ${level.beatenBy} is as good and as fast` : "";
      const said = `, ${level.heads} heads, ${level.precision}${level.loaded ? "" : ", not loaded"}${beaten}`;
      byId("levels").append(make("label", { class: "level", title: said.slice(2) }, box,
        make("span", { class: "chip" }, share, level.name, make("span", { class: "hidden" }, said))));
      return [box, level];
    });
  }

  get chosen() {
    return this.boxes.filter(([box]) => box.checked).map(([, level]) => level);
  }
}
