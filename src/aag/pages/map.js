// The map of a page: a canvas of points to pan, zoom and search; see map.py. Plain script, no dependencies.
"use strict";

const MAX_ZOOM = 200, PICK = 14, GRID = 64; // largest zoom; pixels around the pointer; cells of the index along a side

const words = text => {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  return new Uint16Array(bytes.buffer);
};

document.querySelectorAll(".map").forEach(start);

function start(root) {
  const find = selector => root.querySelector(selector);
  const data = JSON.parse(find("script").textContent);
  const x = Float32Array.from(words(data.x), v => v / 65535), y = Float32Array.from(words(data.y), v => v / 65535);
  const count = x.length;
  const colourings = data.colourings.map(one => ({ ...one, index: words(one.index), hidden: new Set() }));
  const canvas = find(".map-view canvas"), context = canvas.getContext("2d");
  const card = find(".map-card"), picture = card.querySelector("canvas"), caption = card.querySelector("figcaption");
  const legend = find(".map-legend"), search = find(".map-find"), found = find(".map-found");
  const dark = matchMedia("(prefers-color-scheme: dark)"), sheets = [];
  const view = { scale: 1, left: 0, top: 0, width: 0, height: 0, fit: 1 };
  let colouring = colourings[0], colours = [], inks = null, dot = null, image = null, pixels = null, ratio = 1;
  let matches = null, order = [], shown = -1, asked = false, at = -1;

  // --- an index of the points by cell, for the pointer ---

  const cellOf = i => Math.min(GRID - 1, (y[i] * GRID) | 0) * GRID + Math.min(GRID - 1, (x[i] * GRID) | 0);
  const starts = new Uint32Array(GRID * GRID + 1), members = new Uint32Array(count);
  for (let i = 0; i < count; i++) starts[cellOf(i) + 1]++;
  for (let c = 0; c < GRID * GRID; c++) starts[c + 1] += starts[c];
  const filled = starts.slice();
  for (let i = 0; i < count; i++) members[filled[cellOf(i)]++] = i;

  const extent = values => Math.max(0.01, values.reduce((a, b) => Math.max(a, b)) - values.reduce((a, b) => Math.min(a, b)));
  const visible = i => !colouring.hidden.has(colouring.index[i]);

  function nearest(px, py, reach) {
    const mx = (px - view.left) / view.scale, my = (py - view.top) / view.scale, r = reach / view.scale;
    const clamp = v => Math.max(0, Math.min(GRID - 1, Math.floor(v * GRID)));
    let best = -1, limit = r * r;
    for (let cy = clamp(my - r); cy <= clamp(my + r); cy++)
      for (let cx = clamp(mx - r); cx <= clamp(mx + r); cx++)
        for (let m = starts[cy * GRID + cx]; m < starts[cy * GRID + cx + 1]; m++) {
          const i = members[m], far = (x[i] - mx) ** 2 + (y[i] - my) ** 2;
          if (far < limit && visible(i) && (!matches || matches.has(i))) [best, limit] = [i, far];
        }
    return best;
  }

  // --- drawing ---

  function paint() {
    // Up to ten classes have the page's colours; more go around the colour circle in steps of the golden angle.
    const style = getComputedStyle(root), many = colouring.classes.length > 10;
    colours = colouring.classes.map((_, n) => many
      ? `hsl(${(n * 137.5) % 360} ${[62, 48, 75][n % 3]}% ${(dark.matches ? [66, 74, 58] : [42, 34, 50])[n % 3]}%)`
      : style.getPropertyValue(`--class${n}`).trim());
    const pen = Object.assign(document.createElement("canvas"), { width: colours.length, height: 1 }).getContext("2d");
    colours.forEach((colour, n) => { pen.fillStyle = colour; pen.fillRect(n, 0, 1, 1); });
    inks = new Uint32Array(pen.getImageData(0, 0, colours.length, 1).data.buffer).map(rgba => rgba & 0xffffff);
  }

  function makeDot(radius) { // offsets and coverage of its pixels
    const reach = Math.ceil(radius), pixels = [];
    for (let dy = -reach; dy <= reach; dy++)
      for (let dx = -reach; dx <= reach; dx++) {
        const coverage = Math.min(1, radius + 0.5 - Math.hypot(dx, dy));
        if (coverage > 0) pixels.push([dy * canvas.width + dx, coverage]);
      }
    return { radius, reach, width: canvas.width, height: canvas.height, pixels };
  }

  // Pixels are written one by one: 10,000 dots take a millisecond, on any machine and without a GPU.
  function stamp(i, strength) {
    const px = Math.round(view.left * ratio + x[i] * view.scale * ratio);
    const py = Math.round(view.top * ratio + y[i] * view.scale * ratio), { reach, width, height } = dot;
    if (px < reach || py < reach || px >= width - reach || py >= height - reach || !visible(i)) return;
    const ink = inks[colouring.index[i]], middle = py * width + px;
    for (const [offset, coverage] of dot.pixels) {
      const alpha = (coverage * strength * 255) | 0, at = middle + offset;
      if (alpha >= pixels[at] >>> 24) pixels[at] = ink | (alpha << 24);
    }
  }

  function draw() {
    asked = false;
    if (!view.width || !view.height) return; // not laid out yet, or hidden
    const begun = performance.now();
    const radius = ratio * Math.min(7, Math.max(1.8, 150 / Math.sqrt(count)) * (view.scale / view.fit) ** 0.3);
    const sameSize = image?.width === canvas.width && image.height === canvas.height;
    if (dot?.radius !== radius || !sameSize) dot = makeDot(radius);
    if (!sameSize) {
      image = context.createImageData(canvas.width, canvas.height);
      pixels = new Uint32Array(image.data.buffer);
    }
    pixels.fill(0);
    for (let i = 0; i < count; i++) stamp(i, matches ? 0.15 : 0.9);
    if (matches) for (const i of matches) stamp(i, 1);
    context.putImageData(image, 0, 0);
    if (shown >= 0) {
      context.lineWidth = 2 * ratio;
      context.strokeStyle = getComputedStyle(root).color;
      context.beginPath();
      const place = [view.left + x[shown] * view.scale, view.top + y[shown] * view.scale];
      context.arc(place[0] * ratio, place[1] * ratio, radius + 3 * ratio, 0, 7);
      context.stroke();
    }
    root.dataset.redraw = (performance.now() - begun).toFixed(2); // milliseconds; tests read it
  }

  function redraw() {
    if (!asked) requestAnimationFrame(draw);
    asked = true;
  }

  // --- moving ---

  function reset() {
    view.fit = view.scale = 0.94 * Math.min(view.width / extent(x), view.height / extent(y));
    view.left = (view.width - view.scale) / 2;
    view.top = (view.height - view.scale) / 2;
    moved();
  }

  function zoom(factor, px = view.width / 2, py = view.height / 2) {
    const scale = Math.max(view.fit * 0.5, Math.min(view.fit * MAX_ZOOM, view.scale * factor));
    view.left = px - (px - view.left) * scale / view.scale;
    view.top = py - (py - view.top) * scale / view.scale;
    view.scale = scale;
    moved();
  }

  function pan(dx, dy) {
    view.left += dx;
    view.top += dy;
    moved();
  }

  function moved() {
    if (shown >= 0) place();
    redraw();
  }

  function resize() {
    const box = canvas.getBoundingClientRect(), first = !view.width;
    ratio = devicePixelRatio || 1;
    const old = { ...view };
    [view.width, view.height] = [box.width, box.height];
    [canvas.width, canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    if (first || old.scale === old.fit) reset();
    else pan((view.width - old.width) / 2, (view.height - old.height) / 2);
  }

  // --- the picture of a point ---

  function show(i) {
    if (i === shown) return;
    shown = i;
    card.hidden = i < 0;
    if (i >= 0) {
      const labels = colourings.map(one => one.classes[one.index[i]]).join(" · ");
      caption.replaceChildren(Object.assign(document.createElement("b"), { textContent: data.names[i] }), labels);
      drawPicture(i);
      place();
    }
    redraw();
  }

  function drawPicture(i) {
    const tile = data.tile, each = data.columns ** 2, number = (i / each) | 0, inside = i % each;
    if (!sheets[number]) {
      sheets[number] = new Image();
      sheets[number].src = `data:image/jpeg;base64,${data.sheets[number]}`;
    }
    const sheet = sheets[number];
    picture.width = picture.height = tile;
    picture.classList.toggle("small", tile < 64);
    if (!sheet.complete) sheet.onload = () => shown >= 0 && drawPicture(shown);
    else picture.getContext("2d").drawImage(
      sheet, (inside % data.columns) * tile, ((inside / data.columns) | 0) * tile, tile, tile, 0, 0, tile, tile);
  }

  function place() {
    const px = view.left + x[shown] * view.scale, py = view.top + y[shown] * view.scale;
    const clamp = (v, most) => Math.max(4, Math.min(most - 4, v));
    const cardLeft = px + 14 + card.offsetWidth < view.width ? px + 14 : px - 14 - card.offsetWidth;
    card.style.left = `${clamp(cardLeft, view.width - card.offsetWidth)}px`;
    card.style.top = `${clamp(py - card.offsetHeight / 2, view.height - card.offsetHeight)}px`;
  }

  // --- pointer, wheel and keys ---

  const pointers = new Map();
  let travelled = 0, pageScrolled = -1e9;
  const local = event => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  addEventListener("scroll", () => { pageScrolled = performance.now(); }, { passive: true });
  canvas.addEventListener("wheel", event => {
    // While the page scrolls across the map, keep scrolling the page.
    if (!event.ctrlKey && performance.now() - pageScrolled < 250) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), ...local(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    try { canvas.setPointerCapture(event.pointerId); } catch { /* a synthetic event has no pointer */ }
    pointers.set(event.pointerId, local(event));
    travelled = 0;
  });
  canvas.addEventListener("pointermove", event => {
    const here = local(event), before = pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== "touch") show(nearest(...here, PICK));
      return;
    }
    travelled += Math.hypot(here[0] - before[0], here[1] - before[1]);
    if (pointers.size === 2) { // pinch: the other finger is the fixed point
      const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
      const distance = place => Math.max(8, Math.hypot(place[0] - other[0], place[1] - other[1]));
      zoom(distance(here) / distance(before), ...other);
    } else pan(here[0] - before[0], here[1] - before[1]);
    pointers.set(event.pointerId, here);
  });
  const lifted = event => {
    if (pointers.delete(event.pointerId) && travelled < 6 && event.type === "pointerup")
      show(nearest(...local(event), event.pointerType === "touch" ? 24 : PICK));
  };
  canvas.addEventListener("pointerup", lifted);
  canvas.addEventListener("pointercancel", lifted);
  canvas.addEventListener("pointerleave", event => event.pointerType !== "touch" && !pointers.size && show(-1));
  canvas.addEventListener("keydown", event => {
    const step = 60, actions = {
      ArrowLeft: () => pan(step, 0), ArrowRight: () => pan(-step, 0), ArrowUp: () => pan(0, step),
      ArrowDown: () => pan(0, -step), "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5),
      0: reset, Escape: () => show(-1),
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  });
  for (const button of root.querySelectorAll("[data-zoom]"))
    button.addEventListener("click", () => Number(button.dataset.zoom) ? zoom(Number(button.dataset.zoom)) : reset());

  // --- find and legend ---

  function match() {
    const text = search.value.trim().toLowerCase();
    const hits = colourings.map(one => one.classes.map(name => name.toLowerCase().includes(text)));
    const matching = i => data.names[i].toLowerCase().includes(text) || colourings.some((one, n) => hits[n][one.index[i]]);
    order = text ? Array.from({ length: count }, (_, i) => i).filter(matching) : [];
    matches = text ? new Set(order) : null;
    at = -1;
    found.textContent = text ? `${order.length.toLocaleString("en")} found${order.length ? "; Enter shows the next" : ""}` : "";
    show(-1);
    redraw();
  }
  search.addEventListener("input", match);
  search.addEventListener("keydown", event => {
    if (event.key !== "Enter" || !order.length) return;
    event.preventDefault();
    at = (at + 1) % order.length;
    const i = order[at];
    if (view.scale < view.fit * 4) zoom(view.fit * 4 / view.scale);
    pan(view.width / 2 - (view.left + x[i] * view.scale), view.height / 2 - (view.top + y[i] * view.scale));
    show(i);
  });

  function makeLegend() {
    const counts = colouring.classes.map(() => 0);
    for (const n of colouring.index) counts[n]++;
    const button = (text, pressed, act) => {
      const made = Object.assign(document.createElement("button"), { type: "button" });
      made.append(text);
      if (pressed !== null) made.setAttribute("aria-pressed", pressed);
      made.addEventListener("click", () => { act(); show(-1); makeLegend(); redraw(); });
      return made;
    };
    const entries = colouring.classes.map((name, n) => {
      const hidden = colouring.hidden;
      const made = button(name, !hidden.has(n), () => hidden.has(n) ? hidden.delete(n) : hidden.add(n));
      const swatch = document.createElement("i"), total = document.createElement("small");
      swatch.style.background = colours[n];
      total.textContent = counts[n].toLocaleString("en");
      made.prepend(swatch);
      made.append(total);
      return made;
    });
      legend.replaceChildren(button("All", null, () => colouring.hidden.clear()),
      button("None", null, () => { colouring.hidden = new Set(colouring.classes.keys()); }), ...entries);
  }

  const recolour = () => { paint(); makeLegend(); redraw(); };
  find(".map-colour").addEventListener("change", event => { colouring = colourings[event.target.value]; recolour(); });
  dark.addEventListener("change", recolour);
  recolour();
  new ResizeObserver(resize).observe(canvas);
}
