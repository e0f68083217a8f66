"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const scaled = (n, units, step) => {
    let i = 0;
    while (Math.abs(n) >= 999.5 && i < units.length - 1) { n /= step; i += 1; }
    return `${+n.toPrecision(3)} ${units[i]}`;
  };
  const bytes = (n) => scaled(n, ["bytes", "kB", "MB", "GB", "TB"], 1000);
  const seconds = (s) => scaled(s * 1e9, ["ns", "us", "ms", "s"], 1000);
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const sum = (list, key) => list.reduce((all, one) => all + one[key], 0);

  // An element with text and children: text is never read as markup.
  const make = (tag, more = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(more)) {
      if (name === "text") element.textContent = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };

  // -- the head

  const now = sum(data.functions, "bytes"), then = sum(data.functions, "bytes_fixed");
  const launches = sum(data.functions, "launches") - sum(data.functions, "launches_fixed");
  const share = now ? `, ${Math.round(100 * (now - then) / now)} %` : "";
  const typical = data.functions.some((f) => f.typical) || data.findings.some((f) => f.typical.length);
  const about = typical ? "~" : "";
  const guessed = typical ? "and at those of a typical model where nothing says any, marked ~, which rank and say no more; " : "";
  $("totals").textContent =
    `${plural(data.findings.length, "finding")} in ${plural(data.files, "file")}. One call of every function moves ${about}${bytes(now)}; ` +
    `the safe fixes leave ${about}${bytes(then)} (${about}${bytes(now - then)} less${share}) and save ${plural(launches, "launch").replace(/launchs$/, "launches")}.`;
  $("basis").textContent =
    `Bytes are counted from the source at the sizes that each finding names, ${guessed}activations in ${data.dtype}; ` +
    `times are estimates for ${data.chip.name} (${data.chip.origin}). fuselint ${data.version}.`;
  for (const error of data.errors) $("basis").after(make("p", { class: "small", text: error }));

  // -- findings

  const open = (id) => {
    const element = $(`finding-${id}`);
    if (!element) return;
    element.hidden = false;
    element.open = true;
    element.scrollIntoView({ block: "start" });
    element.querySelector("summary").focus({ preventScroll: true });
  };

  // Formulas where nothing says the sizes: a number would be that of another model.
  const arrow = (typical) => (m) => make("span", {
    text: `${m.name ? `${m.name} ` : m.made !== null ? `from ${m.made + 1} ` : ""}${typical ? m.formula : bytes(m.bytes)}` });
  const side = (name, title, s, typical) => {
    const amounts = typical ? "" : `, ${bytes(s.bytes)}, ${seconds(s.seconds)}`;
    const element = make("div", { class: `side ${name}` }, make("h3", {
      text: `${title}: ${plural(s.launches.length, "kernel")}${amounts}` }));
    s.launches.forEach((k, i) => element.append(make("div", { class: "kernel" },
      make("div", { class: "in" }, ...k.reads.map(arrow(typical))),
      make("b", { text: `${i + 1} ${k.op}` }),
      make("div", { class: "out" }, ...k.writes.map(arrow(typical))))));
    return element;
  };

  const excerpt = (f) => {
    const pre = make("pre", { tabindex: "0", "aria-label": "source" });
    f.source.forEach(([number, text]) => {
      const marked = number >= f.line && number <= f.end_line;
      pre.append(make("i", { text: `${String(number).padStart(5)} ` }), marked ? make("span", { class: "marked", text }) : text, "\n");
    });
    return pre;
  };

  const said = (f) => {
    const lines = [];
    if (f.fix && f.fix.applicability === "none") lines.push(`no fix: ${f.fix.message}`);
    else if (f.fix) lines.push(`fix (${f.fix.applicability}, ${f.fix.numerics}): ${f.fix.message}`);
    if (f.fix && f.fix.needs.length) lines.push(`needs: ${f.fix.needs.join("; ")}`);
    for (const o of f.obligations) lines.push(`${o.verdict === "proven" ? "proven" : "not proven"}: ${o.claim} (${o.because})`);
    for (const r of f.related) lines.push(`${r.path}:${r.line}: ${r.message}`);
    if (f.traffic) {
      const at = Object.entries(f.traffic.at).filter(([name]) => !f.typical.includes(name))
        .map(([name, value]) => `${name} = ${value}${f.traffic.assumed.includes(name) ? " (assumed)" : ""}`);
      at.push(...f.typical.map((name) => `${name} that nothing says`));
      const other = f.traffic.otherwise, also = other ? `, or in ${other.dtype} ${other.bytes_now} and ${other.bytes_fused}` : "";
      lines.push(`${f.traffic.bytes_now} bytes now, ${f.traffic.bytes_fused} fused${also}${at.length ? `, at ${at.join(", ")}` : ""}`);
    }
    const v = f.verification;
    if (v) {
      const errors = v.error_before === null ? "" : `: largest error ${v.error_before.toExponential(1)} before, ${v.error_after.toExponential(1)} after, ${plural(v.cases, "case")} on ${v.device}, MLX ${v.mlx}`;
      lines.push(`verification ${v.outcome}${errors}${v.reason ? ` (${v.reason})` : ""}`);
    }
    return make("ul", {}, ...lines.map((text) => make("li", { text })));
  };

  for (const f of data.findings) {
    const saves = f.saves ? `saves ${f.saves} ` : "";
    const element = make("details", { id: `finding-${f.id}`, "data-rule": f.code }, make("summary", {},
      make("span", { class: "code", text: `${f.code} ` }), make("span", { class: "saves", text: saves }),
      make("span", { class: "place", text: `${f.place}:${f.line} ${f.function} ` }), f.message));
    element.addEventListener("toggle", () => {  // drawn when it is first opened
      if (!element.open || element.dataset.drawn) return;
      element.dataset.drawn = "yes";
      element.append(excerpt(f));
      if (f.before) element.append(make("div", { class: "sides" }, side("now", "now", f.before, f.typical.length > 0), side("then", "fused", f.after, f.typical.length > 0)));
      element.append(said(f));
    });
    $("findings").append(element);
  }

  const rules = new Map(data.findings.map((f) => [f.code, f.name]));
  for (const code of [...rules.keys()].sort()) $("rule").append(make("option", { value: code, text: `${code} ${rules.get(code)}` }));
  const filter = () => {
    const rule = $("rule").value, text = $("text").value.toLowerCase();
    let shown = 0;
    for (const element of $("findings").children) {
      element.hidden = Boolean((rule && element.dataset.rule !== rule) || !element.firstChild.textContent.toLowerCase().includes(text));
      shown += element.hidden ? 0 : 1;
    }
    $("count").textContent = `${shown} of ${data.findings.length}`;
  };
  $("filter").addEventListener("input", filter);
  $("filter").addEventListener("submit", (event) => event.preventDefault());
  filter();

  // -- the table of functions

  const byBytes = [...data.functions].sort((a, b) => b.bytes - a.bytes);
  $("functions").append(make("thead", {}, make("tr", {}, ...["function", "today", "fixed", "launches", "fixed", "findings"].map(
    (text, i) => make("th", i ? { class: "n", text } : { text })))));
  const body = make("tbody");
  for (const f of byBytes) {
    const first = make("td", { text: `${f.path}:${f.line} ${f.name}` });
    const last = make("td", { class: "n" });
    f.ids.forEach((id, i) => {
      const button = make("button", { type: "button", text: String(i + 1), "aria-label": `finding ${i + 1} of ${f.name}` });
      button.addEventListener("click", () => open(id));
      last.append(button);
    });
    const about = f.typical ? "~" : "";
    body.append(make("tr", {}, first, ...[about + bytes(f.bytes), about + bytes(f.bytes_fixed), f.launches, f.launches_fixed].map(
      (text) => make("td", { class: "n", text })), last));
  }
  $("functions").append(body);

  // -- charts

  Chart.defaults.animation = false;
  Chart.defaults.font.family = "system-ui, sans-serif";
  let key = "bytes";
  const charts = [];

  const treemap = () => new Chart($("treemap"), {
    type: "treemap",
    data: { datasets: [{
      tree: data.functions.filter((f) => f[key] > 0).map((f) => ({
        file: f.path, class: f.name.includes(".") ? f.name.slice(0, f.name.lastIndexOf(".")) : "functions",
        function: f.name.slice(f.name.lastIndexOf(".") + 1), value: f[key], f })),
      key: "value",
      groups: data.files > 1 ? ["file", "class", "function"] : ["class", "function"],
      spacing: 1, borderWidth: 1, borderColor: style("--paper"),
      captions: { display: true, color: style("--ink"), font: { size: 12 } },
      labels: { display: true, overflow: "hidden", color: style("--ink"), font: { size: 12 },
        formatter: (c) => [c.raw.g, bytes(c.raw.v)] },
      backgroundColor: (c) => {
        if (c.type !== "data" || c.raw.isLeaf === false) return style("--panel");
        const own = leaf(c.raw);
        if (!own) return style("--panel");
        return own.ids.length ? (own.bytes_fixed < own.bytes ? "#d9822b99" : "#c9a22777") : "#6b8fb555";
      },
    }] },
    options: {
      maintainAspectRatio: false,
      onClick: (event, elements) => {
        const own = elements.map((e) => leaf(e.element.$context.raw)).filter(Boolean).pop();
        if (own && own.ids.length) open(own.ids[0]);
      },
      plugins: { legend: { display: false }, tooltip: { callbacks: {
        title: (items) => items.length ? items[items.length - 1].raw.g : "",
        label: (item) => {
          const own = leaf(item.raw);
          return own ? `${own.name}: ${own.typical ? "~" : ""}${bytes(own.bytes)} today, ${own.typical ? "~" : ""}${bytes(own.bytes_fixed)} fixed, ${plural(own.ids.length, "finding")}` : bytes(item.raw.v);
        } } } },
    },
  });
  const leaf = (raw) => {
    const held = raw && raw._data && raw._data.children ? raw._data.children : [];
    const deepest = raw && raw._data && raw._data.label === raw.g && raw.l === (data.files > 1 ? 2 : 1);
    return deepest && held.length === 1 ? held[0].f : null;
  };

  const perSecond = (n) => scaled(n, ["FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"], 1000);

  // What a region reaches lies below the least of two: what memory feeds (the slope), and what the chip computes (flat).
  const roofline = () => {
    const { name, bandwidth, products, vector } = data.chip;
    const regions = data.findings.filter((f) => f.before && f.before.bytes > 0);
    const computing = regions.filter((f) => f.before.operations > 0);
    const points = (side) => computing.filter((f) => f[side].bytes > 0).map((f) => (  // a fix may leave nothing
      { x: f[side].operations / f[side].bytes, y: f[side].operations / f[side].seconds, f }));
    const now = points("before"), fused = points("after");
    const fed = bandwidth * 1e9, peak = products * 1e12, plain = vector * 1e12;
    const low = Math.min(...[...now, ...fused].map((p) => p.x), 0.1), high = Math.max(...[...now, ...fused].map((p) => p.x), 10 * peak / fed);
    const ceilings = [
      { label: `${name}: ${bandwidth} GB/s, ${perSecond(peak)} in products`, borderColor: style("--ink"), borderWidth: 2,
        data: [{ x: low, y: low * fed }, { x: peak / fed, y: peak }, { x: high, y: peak }] }];
    if (plain < peak) ceilings.push({ label: `${perSecond(plain)} elsewhere`, borderColor: style("--soft"), borderWidth: 1, borderDash: [6, 4],
      data: [{ x: plain / fed, y: plain }, { x: high, y: plain }] });
    const still = regions.length - computing.length;
    $("roof-text").textContent =
      `What ${name} can do in ${data.dtype}, and where each region stands, now and fused: operations for each byte that it moves, against operations a second ` +
      `as estimated${typical ? ", at sizes of a typical model where nothing says any" : ""}. On the slope memory is the limit, and fewer bytes are more speed; far below it launches are. Both axes are logarithmic.` +
      (still ? ` ${plural(still, "region")} only ${still === 1 ? "moves" : "move"} or cast${still === 1 ? "s" : ""} data and ${still === 1 ? "has" : "have"} no place here.` : "");
    const axis = (text, format) => ({ type: "logarithmic", title: { display: true, text, color: style("--soft") },
      ticks: { color: style("--soft"), maxTicksLimit: 8, callback: format }, grid: { color: style("--line") } });
    return new Chart($("roof"), {
      type: "scatter",
      data: { datasets: [
        { label: "now", data: now, backgroundColor: style("--now"), pointStyle: "circle", radius: 5 },
        { label: "fused", data: fused, backgroundColor: style("--then"), pointStyle: "triangle", radius: 6 },
        ...ceilings.map((c) => ({ ...c, type: "line", pointStyle: "line", pointRadius: 0, pointHitRadius: 0 })),
      ] },
      options: {
        maintainAspectRatio: false,
        scales: { x: axis("operations for each byte", (v) => +v.toPrecision(2)), y: axis("operations a second", perSecond) },
        onClick: (event, elements) => {
          const own = elements.map((e) => e.element.$context.raw.f).find(Boolean);
          if (own) open(own.id);
        },
        plugins: { legend: { labels: { color: style("--ink"), usePointStyle: true } }, tooltip: { callbacks: {
          label: (item) => item.raw.f ? `${item.raw.f.code} ${item.raw.f.place}:${item.raw.f.line}: ${+item.raw.x.toPrecision(2)} FLOP a byte, ${perSecond(item.raw.y)}` : "" } } },
      },
    });
  };

  const draw = () => {
    while (charts.length) charts.pop().destroy();
    if (data.functions.some((f) => f[key] > 0)) charts.push(treemap());
    charts.push(roofline());
  };
  const show = (chosen) => {
    key = chosen;
    $("today").setAttribute("aria-pressed", String(key === "bytes"));
    $("fixed").setAttribute("aria-pressed", String(key !== "bytes"));
    draw();
  };
  $("today").addEventListener("click", () => show("bytes"));
  $("fixed").addEventListener("click", () => show("bytes_fixed"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  window.fuselint = { data, charts, open };
  if (location.hash.startsWith("#finding-")) open(location.hash.slice("#finding-".length));
})();
