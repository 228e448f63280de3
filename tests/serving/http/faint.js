// The visible texts whose contrast is too low, with their contrast. Colours under a text are laid over each other.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const said = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (!said || !element.checkVisibility() || element.closest(".hidden, .skip")) continue;
    const under = [];
    for (let up = element; up; up = up.parentElement) under.unshift(getComputedStyle(up).backgroundColor);
    const style = getComputedStyle(element);
    const svg = element instanceof SVGElement;
    const [a, b] = [light(over(under)), light(over([...under, svg ? style.fill : style.color]))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (large ? 3 : 4.5)) faint.push(`${contrast.toFixed(2)}: ${element.textContent.trim().slice(0, 40)}`);
  }
  return faint;
}
