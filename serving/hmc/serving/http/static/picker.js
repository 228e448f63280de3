// Which levels are compared.

import { byId, draw, make } from "./dom.js";

const FIRST = 3; // levels that are chosen at first

// The default level, and levels with fewer heads.
function firstChoice(levels) {
  const start = levels.find((level) => level.isDefault) ?? levels[0];
  const chosen = [start];
  for (const level of levels) {
    const fresh = chosen.every((other) => other.heads !== level.heads);
    if (chosen.length < FIRST && fresh && level.loaded && level.heads < start.heads) chosen.push(level);
  }
  return new Set(chosen.map((level) => level.name));
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
      const said = `, ${level.heads} heads, ${level.precision}${level.loaded ? "" : ", not loaded"}`;
      byId("levels").append(make("label", { class: "level", title: said.slice(2) }, box,
        make("span", { class: "chip" }, share, level.name, make("span", { class: "hidden" }, said))));
      return [box, level];
    });
  }

  get chosen() {
    return this.boxes.filter(([box]) => box.checked).map(([, level]) => level);
  }
}
