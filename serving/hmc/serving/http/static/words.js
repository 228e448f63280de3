// Texts as words, and which source words each word of a translation comes from.

const START = "\u2581";

// Groups pieces into words. Returns [{ text, pieces: [index, …] }]. The end token is left out.
function group(pieces) {
  const words = [];
  pieces.forEach((piece, index) => {
    const begins = piece.startsWith(START);
    const text = begins ? piece.slice(START.length) : piece;
    if (begins || !words.length) words.push({ text, pieces: [index] });
    else {
      words.at(-1).text += text;
      words.at(-1).pieces.push(index);
    }
  });
  return words.filter((word) => word.text);
}

// Leaves out a first word that the text has not: the token of a language.
function spoken(words, text) {
  return words.length && !text.includes(words[0].text) ? words.slice(1) : words;
}

// Finds each word in the text, in order. Returns spans [{ text, word }], where word is an index or -1, or null if the
// text is written in another way than its pieces.
function locate(text, words, first) {
  const spans = [];
  let at = 0;
  for (const [index, word] of words.entries()) {
    const found = text.indexOf(word.text, at);
    if (found < 0) return null;
    if (found > at) spans.push({ text: text.slice(at, found), word: -1 });
    spans.push({ text: word.text, word: first + index });
    at = found + word.text.length;
  }
  if (at < text.length) spans.push({ text: text.slice(at), word: -1 });
  return spans;
}

// The attention of each target word over the source words: the mean over its pieces, scaled so that the largest is 1.
function weigh(target, source, tokens) {
  return target.map((word) => {
    const row = source.map((from) => {
      const sums = word.pieces.map((piece) => from.pieces.reduce((sum, s) => sum + (tokens[piece].attention?.[s] ?? 0), 0));
      return sums.reduce((a, b) => a + b, 0) / sums.length;
    });
    return row;
  });
}

function segmentsOf(text, translation) {
  const segments = (translation.segments ?? []).filter((one) => one.tokens?.length);
  if (segments.length) return segments;
  if (!translation.tokens?.length) return [];
  const end = Array.from(translation.text).length;
  return [{
    sourceBegin: 0, sourceEnd: Array.from(text).length, targetBegin: 0, targetEnd: end,
    tokens: translation.tokens, sourcePieces: translation.sourcePieces,
  }];
}

// Returns { source, target, weights }: spans of both texts, and for each target word a Map from source words to shares.
export function align(text, translation) {
  const from = Array.from(text), to = Array.from(translation.text);
  const cut = (letters, begin, end) => letters.slice(begin, end).join("");
  const source = [], target = [], weights = [];
  let sourceWords = 0, readTo = 0, writtenTo = 0;
  for (const segment of segmentsOf(text, translation)) {
    const { sourceBegin, sourceEnd, targetBegin, targetEnd, tokens } = segment;
    const read = cut(from, sourceBegin, sourceEnd), written = cut(to, targetBegin, targetEnd);
    const sources = spoken(group((segment.sourcePieces ?? []).slice(0, -1)), read);
    const targets = spoken(group(tokens.slice(0, -1).map((token) => token.piece)), written);
    const left = locate(read, sources, sourceWords);
    const right = locate(written, targets, weights.length);
    source.push({ text: cut(from, readTo, sourceBegin), word: -1 });
    target.push({ text: cut(to, writtenTo, targetBegin), word: -1 });
    source.push(...(left ?? [{ text: read, word: -1 }]));
    target.push(...(right ?? [{ text: written, word: -1 }]));
    if (right) {
      for (const row of weigh(targets, left ? sources : [], tokens)) {
        weights.push(new Map(row.map((weight, index) => [sourceWords + index, weight])));
      }
    }
    if (left) sourceWords += sources.length;
    readTo = sourceEnd;
    writtenTo = targetEnd;
  }
  source.push({ text: cut(from, readTo), word: -1 });
  target.push({ text: cut(to, writtenTo), word: -1 });
  return { source: source.filter((span) => span.text), target: target.filter((span) => span.text), weights };
}
