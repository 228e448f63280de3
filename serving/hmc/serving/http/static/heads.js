// The map of heads: a row for each kind, a block for each layer, a square for each head of the unpruned model.

import { draw, make } from "./dom.js";

const KINDS = [
  ["HEAD_KIND_ENCODER_SELF", "encoder", "encoder"],
  ["HEAD_KIND_DECODER_SELF", "decoder", "decoder"],
  ["HEAD_KIND_CROSS", "cross", "cross"],
];
const CELL = 7, GAP = 1.5, BETWEEN = 6, ROW = 8, LABEL = 44;

const layersOf = (level, kind) => level.headsByKind?.find((one) => one.kind === kind)?.headsPerLayer ?? [];

// Heads of one layer of the unpruned model: the most that any level has anywhere.
export function headsPerLayer(levels) {
  return Math.max(1, ...levels.flatMap((level) => KINDS.flatMap(([kind]) => layersOf(level, kind))));
}

export function headsMap(level, perLayer) {
  const columns = perLayer <= 4 ? perLayer : Math.ceil(perLayer / 2);
  const rows = Math.ceil(perLayer / columns);
  const block = columns * (CELL + GAP) - GAP;
  const height = rows * (CELL + GAP) - GAP;
  const layers = Math.max(1, ...KINDS.map(([kind]) => layersOf(level, kind).length));
  const width = LABEL + layers * (block + BETWEEN) - BETWEEN;
  const said = [];
  const svg = draw("svg", {
    viewBox: `0 0 ${Math.max(width, 240)} ${KINDS.length * (height + ROW) - ROW}`,
    role: "img",
    preserveAspectRatio: "xMinYMin meet",
  });
  KINDS.forEach(([kind, name, label], row) => {
    const top = row * (height + ROW);
    const open = layersOf(level, kind);
    said.push(`${label} ${open.join(", ") || 0}`);
    svg.append(draw("text", { x: 0, y: top + height / 2 + 3 }, label));
    open.forEach((count, layer) => {
      const left = LABEL + layer * (block + BETWEEN);
      for (let head = 0; head < perLayer; head += 1) {
        svg.append(draw("rect", {
          x: left + (head % columns) * (CELL + GAP),
          y: top + Math.floor(head / columns) * (CELL + GAP),
          width: CELL,
          height: CELL,
          rx: 1.6,
          class: head < count ? name : "closed",
        }));
      }
    });
  });
  svg.setAttribute("aria-label", `Open heads of each layer: ${said.join("; ")}`);
  return make("div", { class: "heads" }, svg);
}
