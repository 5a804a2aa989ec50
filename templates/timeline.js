"use strict";
// Draws each core's timeline from the columns that the page carries. Everything shown comes from the two JSON documents.
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const drawn = JSON.parse(document.getElementById("timelines").textContent);
  const figures = [...document.querySelectorAll(".timeline")];
  const PART_NAMES = {
    work: "work", exposed_collective: "exposed collective", in_kernel_wait: "in-kernel wait", idle: "idle",
    runtime_overhead: "runtime overhead",
  };
  const ACCOUNT = Object.keys(PART_NAMES);
  const GAP_BAND = 34, ACCOUNT_HEIGHT = 40, ROW_HEIGHT = 26, ROW_SPACE = 4, AXIS_HEIGHT = 22;
  const MIN_COLUMNS = 32;
  const view = { from: 0, to: 1 };  // the part of the window in sight, shared by all cores
  const act = { in: () => zoom(.5), out: () => zoom(2), left: () => move(-.25), right: () => move(.25), all: () => show(0, 1) };
  const cores = drawn.cores.map((core, index) => prepare(core, figures[index]));

  function prepare(core, figure) {
    const lanes = new Map(core.lanes.map(([name, kind, data]) => [`${name}/${kind}`, decode(data)]));
    const gaps = report.result.cores[core.report_index].longest_gaps;
    const rows = [{ label: "account", account: true }];
    for (const name of drawn.engines) rows.push({ label: name, busy: lanes.get(`${name}/busy`), blocked: lanes.get(`${name}/blocked`) });
    rows.push({ label: "dma", busy: lanes.get("dma/busy"), missing: !core.captured.dma });
    if (core.rate) rows.push({ label: "dma rate", busy: decode(core.rate.data), scale: core.rate.scale_bytes_per_s, mark: core.rate.mark_bytes_per_s });
    rows.push({ label: "collectives", busy: lanes.get("collective/busy"), missing: !core.captured.collectives });
    // Rows that most captures leave empty are there only where they are not.
    for (const [name, label] of [["kernel", "in a kernel"], ["throttle", "throttled"]]) {
      if (lanes.get(`${name}/busy`).at(-1) > 0) rows.push({ label, busy: lanes.get(`${name}/busy`) });
    }
    const canvas = document.createElement("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Timeline of core ${core.core}: use the arrow keys to read columns, plus and minus to zoom`);
    figure.querySelector(".plot").append(canvas);
    const item = { core, figure, canvas, lanes, gaps, rows, cursor: null, drag: null, readout: figure.querySelector(".readout") };
    listen(item);
    read(item);
    return item;
  }

  // A lane as the running sum of its shares (0 to 255), so that the mean over any stretch is one subtraction.
  function decode(text) {
    const bytes = atob(text), sums = new Float64Array(bytes.length + 1);
    for (let i = 0; i < bytes.length; i++) sums[i + 1] = sums[i] + bytes.charCodeAt(i);
    return sums;
  }

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  function time(ns, span = Math.abs(ns)) {
    const [unit, size] = span >= 1e9 ? ["s", 1e9] : span >= 1e6 ? ["ms", 1e6] : span >= 1e3 ? ["us", 1e3] : ["ns", 1];
    return `${(ns / size).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit}`;
  }

  // Mean share (0 to 1) from `from` to `to`, both as fractions of the window.
  function mean(sums, from, to) {
    return (sumBefore(sums, to) - sumBefore(sums, from)) / (to - from) / (sums.length - 1) / 255;
  }

  function sumBefore(sums, at) {
    const place = Math.min(Math.max(at, 0), 1) * (sums.length - 1), column = Math.min(Math.floor(place), sums.length - 2);
    return sums[column] + (place - column) * (sums[column + 1] - sums[column]);
  }

  function share(sums, column) {
    return (sums[column + 1] - sums[column]) / 255;
  }

  function hatch(context, part) {
    const tile = new OffscreenCanvas(8, 8), pen = tile.getContext("2d");
    pen.fillStyle = color(part === "idle" ? "track" : part);
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = part === "idle" ? color("dim") : color("hatch");
    pen.lineWidth = 2;
    const lines = {
      in_kernel_wait: [[0, 0, 8, 8], [0, 8, 8, 0]], exposed_collective: [[2, 0, 2, 8], [6, 0, 6, 8]],
      idle: [[1.5, 2, 3.5, 2], [5.5, 6, 7.5, 6]], runtime_overhead: [[0, 2, 8, 2], [0, 6, 8, 6]],
    }[part] || [];
    for (const [x1, y1, x2, y2] of lines) { pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke(); }
    return context.createPattern(tile, "repeat");
  }

  function draw(item) {
    const { canvas, core } = item;
    const width = canvas.clientWidth, gutter = width < 560 ? 66 : 92;
    if (width < 2 * gutter) return;  // not laid out, or too narrow to show anything
    const height = GAP_BAND + ACCOUNT_HEIGHT + ROW_SPACE + (item.rows.length - 1) * (ROW_HEIGHT + ROW_SPACE) + AXIS_HEIGHT;
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height);
    pen.font = "12.5px system-ui, sans-serif";
    item.place = { left: gutter, width: width - gutter - 1, height };
    const span = view.to - view.from;
    const pixels = item.place.width;
    const at = (x) => view.from + (x / pixels) * span;
    let y = GAP_BAND;
    for (const row of item.rows) {
      const tall = row.account ? ACCOUNT_HEIGHT : ROW_HEIGHT;
      pen.fillStyle = color("track");
      pen.fillRect(gutter, y, pixels, tall);
      pen.fillStyle = color("ink");
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      pen.fillText(row.label, gutter - 9, y + tall / 2, gutter - 12);
      if (row.account) drawAccount(pen, item, at, gutter, y, pixels);
      else if (row.missing) {
        pen.fillStyle = color("dim");
        pen.textAlign = "left";
        pen.fillText("not captured", gutter + 8, y + tall / 2);
      } else drawShare(pen, row, at, gutter, y, pixels);
      y += tall + ROW_SPACE;
    }
    drawAxis(pen, core, gutter, y - ROW_SPACE, pixels);
    drawGaps(pen, item, gutter, pixels, y - ROW_SPACE);
    drawCursor(pen, item, gutter, pixels, y - ROW_SPACE);
  }

  function drawAccount(pen, item, at, left, top, pixels) {
    const tops = new Float64Array(pixels).fill(top + ACCOUNT_HEIGHT);
    for (const name of ACCOUNT) {
      const sums = item.lanes.get(`${name}/account`);
      pen.fillStyle = name === "work" ? color("work") : hatch(pen, name);
      pen.beginPath();
      for (let x = 0; x < pixels; x++) {
        const part = mean(sums, at(x), at(x + 1));
        if (part <= 0) continue;
        const tall = Math.min(part * ACCOUNT_HEIGHT, tops[x] - top);
        pen.rect(left + x, tops[x] - tall, 1, tall);
        tops[x] -= tall;
      }
      pen.fill();
    }
  }

  function drawShare(pen, row, at, left, top, pixels) {
    const bottom = top + ROW_HEIGHT;
    if (row.blocked) {
      pen.fillStyle = color("blocked");
      pen.beginPath();
      for (let x = 0; x < pixels; x++) {
        const part = mean(row.blocked, at(x), at(x + 1));
        if (part > 0) pen.rect(left + x, bottom - Math.max(1, part * ROW_HEIGHT / 3), 1, Math.max(1, part * ROW_HEIGHT / 3));
      }
      pen.fill();
    }
    pen.fillStyle = color("measure");
    pen.beginPath();
    for (let x = 0; x < pixels; x++) {
      const part = mean(row.busy, at(x), at(x + 1));
      if (part > 0) pen.rect(left + x, bottom - Math.max(1, part * ROW_HEIGHT), 1, Math.max(1, part * ROW_HEIGHT));
    }
    pen.fill();
    if (row.mark) {
      const y = Math.round(bottom - ROW_HEIGHT * row.mark / row.scale) + .5;
      pen.strokeStyle = color("ink");
      pen.setLineDash([4, 3]);
      pen.beginPath(); pen.moveTo(left, y); pen.lineTo(left + pixels, y); pen.stroke();
      pen.setLineDash([]);
      label(pen, `${Math.round(row.mark / 1e9)} GB/s`, left + pixels - 4, y + 8, "right");
    }
  }

  function label(pen, text, x, y, align = "center") {
    pen.textAlign = align;
    pen.lineWidth = 4;
    pen.strokeStyle = color("card");
    pen.lineJoin = "round";
    pen.strokeText(text, x, y);
    pen.fillStyle = color("ink");
    pen.fillText(text, x, y);
  }

  function drawAxis(pen, core, left, top, pixels) {
    const window_ns = core.end_ts - core.start_ts, span = (view.to - view.from) * window_ns;
    const rough = span / Math.max(2, Math.floor(pixels / 110)), power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= rough) * power);
    pen.fillStyle = color("dim");
    pen.strokeStyle = color("dim");
    pen.lineWidth = 1;
    pen.textBaseline = "top";
    const from = core.start_ts + view.from * window_ns;
    for (let tick = Math.ceil(from / step) * step; tick <= from + span; tick += step) {
      const x = left + (tick - from) / span * pixels;
      pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, top + 4); pen.stroke();
      pen.textAlign = x > left + pixels - 26 ? "right" : x < left + 26 ? "left" : "center";
      pen.fillText(time(tick, Math.abs(from) + span), x, top + 7);
    }
    pen.textBaseline = "middle";
  }

  function drawGaps(pen, item, left, pixels, bottom) {
    const { core, gaps } = item, window_ns = core.end_ts - core.start_ts, taken = [[], []];
    gaps.forEach((gap, index) => {
      const from = ((gap.start_ts - core.start_ts) / window_ns - view.from) / (view.to - view.from) * pixels;
      const to = ((gap.end_ts - core.start_ts) / window_ns - view.from) / (view.to - view.from) * pixels;
      if (to < 0 || from > pixels) return;
      const a = left + Math.max(0, from), b = Math.max(a + 1.5, left + Math.min(pixels, to));
      const middle = Math.min(Math.max((a + b) / 2, left + 12), left + pixels - 12);
      const text = `${index + 1} · ${time(gap.end_ts - gap.start_ts)}`;
      const wide = pen.measureText(text).width + 12;
      const x = Math.min(Math.max(middle, left + wide / 2), left + pixels - wide / 2);
      const free = (row, half) => taken[row].every(([c, d]) => x + half < c || x - half > d);
      let row = [1, 0].find((candidate) => free(candidate, wide / 2)), shown = text, half = wide / 2;
      if (row === undefined) { row = [1, 0].find((candidate) => free(candidate, 9)); shown = `${index + 1}`; half = 9; }
      pen.strokeStyle = color("ink");
      pen.lineWidth = 1;
      pen.setLineDash([2, 3]);
      pen.beginPath();
      for (const edge of b - a > 3 ? [a, b] : [(a + b) / 2]) { pen.moveTo(edge, GAP_BAND - 2); pen.lineTo(edge, bottom); }
      pen.stroke();
      pen.setLineDash([]);
      pen.lineWidth = 2;
      pen.beginPath(); pen.moveTo(a, GAP_BAND - 2); pen.lineTo(b, GAP_BAND - 2); pen.stroke();
      if (row === undefined) return;
      taken[row].push([x - half, x + half]);
      label(pen, shown, x, 8 + row * 15);
    });
  }

  function drawCursor(pen, item, left, pixels, bottom) {
    if (item.drag && item.drag.to !== undefined) {
      pen.fillStyle = color("accent");
      pen.globalAlpha = .18;
      pen.fillRect(Math.min(item.drag.from, item.drag.to), GAP_BAND, Math.abs(item.drag.to - item.drag.from), bottom - GAP_BAND);
      pen.globalAlpha = 1;
    }
    if (item.cursor === null) return;
    const x = left + (item.cursor - view.from) / (view.to - view.from) * pixels;
    if (x < left || x > left + pixels) return;
    pen.strokeStyle = color("accent");
    pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(x, GAP_BAND); pen.lineTo(x, bottom); pen.stroke();
  }

  function read(item) {
    const { core, cursor } = item;
    item.readout.textContent = "";
    if (cursor === null) {
      item.readout.textContent = "Point at a column, or focus the timeline and press ← →, to read it here.";
      return;
    }
    const column = Math.min(core.columns - 1, Math.floor(cursor * core.columns)), window_ns = core.end_ts - core.start_ts;
    const from = core.start_ts + Math.floor(window_ns * column / core.columns);
    const to = core.start_ts + Math.floor(window_ns * (column + 1) / core.columns);
    const say = (name, value) => {
      const strong = document.createElement("b");
      strong.textContent = name;
      item.readout.append(strong, ` ${value}   `);
    };
    say(`${from.toLocaleString("en")} to ${to.toLocaleString("en")} ns:`, "");
    for (const part of ACCOUNT) {
      const part_share = share(item.lanes.get(`${part}/account`), column);
      if (part_share) say(PART_NAMES[part], `${Math.round(100 * part_share)} %`);
    }
    for (const row of item.rows) {
      if (row.account || row.missing) continue;
      const busy = share(row.busy, column), blocked = row.blocked ? share(row.blocked, column) : 0;
      if (row.scale) { if (busy) say(row.label, `${Math.round(busy * row.scale / 1e9)} GB/s`); continue; }
      if (busy || blocked) say(row.label, `${Math.round(100 * busy)} %${blocked ? ` (blocked ${Math.round(100 * blocked)} %)` : ""}`);
    }
  }

  function show(from, to) {
    const least = Math.min(1, MIN_COLUMNS / Math.max(...drawn.cores.map((core) => core.columns)));
    const wide = Math.min(1, Math.max(least, to - from)), middle = (from + to) / 2;
    view.from = Math.min(Math.max(0, middle - wide / 2), 1 - wide);
    view.to = view.from + wide;
    redraw();
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    show(around - (around - view.from) * factor, around + (view.to - around) * factor);
  }

  function move(share) {
    const wide = view.to - view.from;
    show(view.from + share * wide, view.to + share * wide);
  }

  function showGap(item, index) {
    const gap = item.gaps[index];
    if (!gap) return;
    const window_ns = item.core.end_ts - item.core.start_ts, length = (gap.end_ts - gap.start_ts) / window_ns;
    const middle = ((gap.start_ts + gap.end_ts) / 2 - item.core.start_ts) / window_ns;
    item.cursor = middle;
    show(middle - 3 * length, middle + 3 * length);
    read(item);
  }

  function listen(item) {
    const { canvas } = item;
    const where = (event) => {
      const x = event.clientX - canvas.getBoundingClientRect().left;
      return { x, at: view.from + Math.min(1, Math.max(0, (x - item.place.left) / item.place.width)) * (view.to - view.from) };
    };
    canvas.addEventListener("pointerdown", (event) => {
      const { x, at } = where(event);
      item.drag = { from: x, start: at };
      item.cursor = at;
      canvas.setPointerCapture(event.pointerId);
      draw(item); read(item);
    });
    canvas.addEventListener("pointermove", (event) => {
      const { x, at } = where(event);
      if (item.drag && event.pointerType !== "touch") item.drag.to = x;
      item.cursor = at;
      draw(item); read(item);
    });
    canvas.addEventListener("pointerup", (event) => {
      const { x, at } = where(event), drag = item.drag;
      item.drag = null;
      if (drag && drag.to !== undefined && Math.abs(x - drag.from) > 6) show(Math.min(drag.start, at), Math.max(drag.start, at));
      else draw(item);
    });
    canvas.addEventListener("pointercancel", () => { item.drag = null; draw(item); });
    canvas.addEventListener("pointerleave", () => { if (!item.drag && document.activeElement !== canvas) { item.cursor = null; draw(item); read(item); } });
    canvas.addEventListener("dblclick", act.all);
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : .8, where(event).at);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const wide = view.to - view.from, step = Math.max(1 / item.core.columns, wide / 200);
      const cursor = item.cursor === null ? (view.from + view.to) / 2 : item.cursor;
      const keys = {
        "+": act.in, "=": act.in, "-": act.out, "0": act.all, "[": act.left, "]": act.right,
        Home: () => { item.cursor = 0; move(-1e9); }, End: () => { item.cursor = 1 - 1e-9; move(1e9); },
        ArrowLeft: () => { item.cursor = Math.max(0, cursor - step); if (item.cursor < view.from) move(-.25); },
        ArrowRight: () => { item.cursor = Math.min(1 - 1e-9, cursor + step); if (item.cursor > view.to) move(.25); },
      };
      const todo = keys[event.key] || (/^[1-9]$/.test(event.key) ? () => showGap(item, Number(event.key) - 1) : null);
      if (!todo) return;
      event.preventDefault();
      todo();
      draw(item); read(item);
    });
  }

  function redraw() {
    for (const item of cores) draw(item);
  }

  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", act[button.dataset.zoom]);
  for (const button of document.querySelectorAll("button.gap")) {
    button.addEventListener("click", () => {
      const item = cores[Number(button.dataset.core)];
      showGap(item, Number(button.dataset.gap));
      item.figure.scrollIntoView({ block: "center" });
      item.canvas.focus({ preventScroll: true });
    });
  }
  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
})();
