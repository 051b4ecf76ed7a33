// The map of a page: a canvas of points to pan, zoom and search; see map.py. Plain script, no dependencies.
"use strict";

const MAX_ZOOM = 200, PICK = 14, GRID = 64; // largest zoom; pixels around the pointer; cells of the index along a side

const words = text => {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  return new Uint16Array(bytes.buffer);
};

for (const root of document.querySelectorAll(".map")) start(root);

function start(root) {
  const find = selector => root.querySelector(selector);
  const data = JSON.parse(find("script").textContent);
  const x = Float32Array.from(words(data.x), v => v / 65535), y = Float32Array.from(words(data.y), v => v / 65535);
  const count = x.length;
  const colourings = data.colourings.map(one => ({ ...one, index: words(one.index), hidden: new Set() }));
  const canvas = find(".map-view canvas"), context = canvas.getContext("2d");
  const card = find(".map-card"), picture = card.querySelector("canvas"), caption = card.querySelector("figcaption");
  const legend = find(".map-legend"), search = find(".map-find"), found = find(".map-found");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const view = { scale: 1, left: 0, top: 0, width: 0, height: 0, fit: 1 };
  const sheets = [];
  let colouring = colourings[0], colours = [], dots = [], matches = null, order = [], shown = -1, asked = false, at = -1;

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
    dots = [];
  }

  function dot(colour, radius) {
    const ratio = devicePixelRatio || 1, side = Math.ceil(2 * radius * ratio) + 2, made = document.createElement("canvas");
    made.width = made.height = side;
    const pen = made.getContext("2d");
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(side / 2, side / 2, radius * ratio, 0, 7);
    pen.fill();
    return made;
  }

  function draw() {
    asked = false;
    const begun = performance.now(), ratio = devicePixelRatio || 1;
    const radius = Math.min(6, Math.max(1.6, 90 / Math.sqrt(count)) * (view.scale / view.fit) ** 0.3);
    if (dots.radius !== radius) {
      dots = colours.map(colour => dot(colour, radius));
      dots.radius = radius;
    }
    const index = colouring.index, hidden = colouring.hidden;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    const half = dots.length ? dots[0].width / 2 : 0, scale = view.scale * ratio;
    const left = view.left * ratio - half, top = view.top * ratio - half;
    const put = i => {
      const px = left + x[i] * scale, py = top + y[i] * scale;
      if (px > -30 && py > -30 && px < canvas.width && py < canvas.height && !hidden.has(index[i]))
        context.drawImage(dots[index[i]], px | 0, py | 0);
    };
    context.globalAlpha = matches ? 0.12 : 0.85;
    for (let i = 0; i < count; i++) put(i);
    if (matches) {
      context.globalAlpha = 1;
      for (const i of matches) put(i);
    }
    if (shown >= 0) {
      context.globalAlpha = 1;
      context.lineWidth = 2 * ratio;
      context.strokeStyle = getComputedStyle(root).color;
      context.beginPath();
      context.arc(left + half + x[shown] * scale, top + half + y[shown] * scale, (radius + 3) * ratio, 0, 7);
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
    const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1, first = !view.width;
    const old = { ...view };
    [view.width, view.height] = [box.width, box.height];
    [canvas.width, canvas.height] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    dots = [];
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
    const beside = px + 14 + card.offsetWidth < view.width ? px + 14 : px - 14 - card.offsetWidth;
    card.style.left = `${clamp(beside, view.width - card.offsetWidth)}px`;
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
    // A page that is scrolling across the map scrolls on.
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
    const all = () => colouring.classes.keys();
    legend.replaceChildren(button("All", null, () => colouring.hidden.clear()),
      button("None", null, () => { colouring.hidden = new Set(all()); }), ...entries);
  }

  const recolour = () => { paint(); makeLegend(); redraw(); };
  find(".map-colour").addEventListener("change", event => { colouring = colourings[event.target.value]; recolour(); });
  dark.addEventListener("change", recolour);
  recolour();
  new ResizeObserver(resize).observe(canvas);
}
