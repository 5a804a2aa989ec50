"use strict";
// DMA packet sizes against what packets can reach, and the roofline, from the report's details. Plotly lies in the page
// compressed; it may run because the page's policy lists its hash.
(async () => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const places = [...document.querySelectorAll("[data-chart]")];
  if (!places.length) return;
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (char) => char.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);

  const SYMBOLS = ["circle", "square", "diamond", "cross", "triangle-up", "star", "x", "hexagon"];
  const CONFIG = { displayModeBar: false };

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  function axis(title, more = {}) {
    return {
      title: { text: title, font: { size: 12.5 } }, gridcolor: color("line"), linecolor: color("line"), zeroline: false,
      tickcolor: color("line"), ticks: "outside", automargin: true, ...more,
    };
  }

  function layout(more) {
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 12, t: 8, b: 44 },
      font: { family: "system-ui, sans-serif", size: 12.5, color: color("ink") }, showlegend: true, dragmode: "pan",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
      hoverlabel: { bgcolor: color("card"), bordercolor: color("dim"), font: { color: color("ink"), size: 12.5 } }, ...more,
    };
  }

  function size(bytes) {
    return bytes >= 1024 ? `${bytes / 1024} KiB` : `${bytes} B`;
  }

  // 1, 2 and 5 of each decade on a log axis, with a unit.
  function decades(from, to, unit) {
    const values = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power++) {
      for (const digit of [1, 2, 5]) if (digit * 10 ** power >= from && digit * 10 ** power <= to) values.push(digit * 10 ** power);
    }
    return { type: "log", tickvals: values, ticktext: values.map(unit), range: [Math.log10(from), Math.log10(to)] };
  }

  function dmaChart(index) {
    const detail = report.result.details[index], dma = detail.dma_efficiency, achievable = report.result.peaks[detail.input].dma.achievable;
    const gigabytes = (rate) => rate / 1e9, sizes = achievable.map(([bytes]) => bytes);
    const last = sizes[sizes.length - 1], first = sizes[0];
    const classes = dma.sizes.filter((entry) => entry.group.bytes > 0);
    const rates = classes.filter((entry) => entry.group.active_ns > 0);
    const mean = (entry) => Math.min(last, Math.max(first, entry.group.bytes / entry.group.packet_count));
    const steps = { x: [first], y: [0] };
    for (const entry of classes) {
      const low = Math.max(first, entry.low_bytes), high = entry.high_bytes ?? last;
      steps.x.push(low, low, high, high);
      steps.y.push(0, 100 * entry.group.bytes / dma.data_bytes, 100 * entry.group.bytes / dma.data_bytes, 0);
    }
    const data = [
      { x: sizes, y: achievable.map(([, rate]) => gigabytes(rate.low_bytes_per_s)), mode: "lines", line: { color: color("dim"), dash: "dot", width: 1.5 }, name: "achievable, one stream", hovertemplate: "%{y:.0f} GB/s<extra>one stream</extra>", yaxis: "y2" },
      { x: sizes, y: achievable.map(([, rate]) => gigabytes(rate.high_bytes_per_s)), mode: "lines", fill: "tonexty", fillcolor: color("band"), line: { color: color("dim"), dash: "dash", width: 1.5 }, name: "achievable, all engines busy", hovertemplate: "%{y:.0f} GB/s<extra>all engines busy</extra>", yaxis: "y2" },
      {
        x: rates.map(mean), y: rates.map((entry) => entry.group.bytes / entry.group.active_ns), mode: "markers", yaxis: "y2", name: "measured while active",
        marker: { color: color("busy_beyond_floor"), symbol: "diamond", size: rates.map((entry) => 9 + 15 * Math.sqrt(entry.group.charged_ns / Math.max(1, dma.data_ns))), line: { color: color("ink"), width: 1 } },
        text: rates.map((entry) => `${entry.group.packet_count.toLocaleString("en")} packets, ${entry.group.bytes.toLocaleString("en")} bytes`), hovertemplate: "%{y:.0f} GB/s<br>%{text}<extra></extra>",
      },
      { x: steps.x, y: steps.y, mode: "lines", fill: "tozeroy", fillcolor: color("measure"), line: { color: color("measure"), width: 1.5 }, name: "share of the bytes", hovertemplate: "%{y:.1f} % of the bytes<extra></extra>" },
    ];
    const ticks = sizes.filter((_, at) => at % 2 === 1);
    return [data, layout({
      xaxis: axis("packet size", { type: "log", tickvals: ticks, ticktext: ticks.map(size), range: [Math.log10(first), Math.log10(last)], anchor: "y" }),
      yaxis: axis("% of bytes", { domain: [0, .34], range: [0, 105], fixedrange: true }),
      yaxis2: axis("GB/s", { domain: [.42, 1], rangemode: "tozero", fixedrange: true }),
    })];
  }

  function rooflineChart() {
    const shown = places.find((place) => place.dataset.chart === "roofline").dataset.cores.split(",").map(Number);
    const points = shown.map((index) => [index, report.result.details[index]]).filter(([, detail]) => detail.roofline.arithmetic_intensity > 0 && detail.roofline.achieved_flop_per_s > 0);
    const peak = report.result.peaks[points[0][1].input].core_peak_flop_per_s, bandwidth = report.hardware.bandwidth_bytes_per_s;
    const ridge = peak / bandwidth, places_x = [ridge, ...points.map(([, detail]) => detail.roofline.arithmetic_intensity)];
    const from = Math.min(...places_x) / 6, to = Math.max(...places_x) * 6;
    const lows = points.map(([, detail]) => detail.roofline.achieved_flop_per_s);
    const data = [
      { x: [from, ridge], y: [from * bandwidth, peak], mode: "lines", line: { color: color("memory_floor"), width: 2.5 }, name: `HBM ${Math.round(bandwidth / 1e9)} GB/s`, hoverinfo: "name" },
      { x: [ridge, to], y: [peak, peak], mode: "lines", line: { color: color("busy_beyond_floor"), width: 2.5, dash: "dash" }, name: `tensor engine ${(peak / 1e12).toFixed(1)} TFLOP/s bf16`, hoverinfo: "name" },
    ];
    points.forEach(([index, detail], at) => {
      const { arithmetic_intensity: x, achieved_flop_per_s: y, attainable_flop_per_s: top } = detail.roofline;
      data.push({ x: [x, x], y: [y, top], mode: "lines", line: { color: color("dim"), dash: "dot", width: 1.5 }, showlegend: false, hoverinfo: "skip" });
      data.push({
        x: [x], y: [y], mode: "markers+text", name: `core ${detail.core}`, text: [`core ${detail.core}`], textposition: "bottom right",
        marker: { size: 13, symbol: SYMBOLS[at % SYMBOLS.length], color: color("ink") },
        hovertemplate: `%{x:.1f} FLOP/B<br>${(y / 1e12).toFixed(2)} of ${(top / 1e12).toFixed(2)} attainable TFLOP/s<extra>core ${detail.core}</extra>`,
      });
    });
    return [data, layout({
      xaxis: axis("FLOP a HBM byte", decades(from, to, (value) => value.toLocaleString("en"))),
      yaxis: axis("TFLOP/s", decades(Math.min(...lows) / 3, peak * 2, (value) => `${Number((value / 1e12).toPrecision(2))}`)),
    })];
  }

  function drawAll() {
    for (const place of places) {
      const [data, options] = place.dataset.chart === "dma" ? dmaChart(Number(place.dataset.index)) : rooflineChart();
      window.Plotly.react(place, data, { ...options, width: place.clientWidth, height: place.clientHeight }, CONFIG);
    }
    document.documentElement.dataset.charts = "drawn";
  }

  window.addEventListener("resize", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
