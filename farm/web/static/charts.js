// Draws each chart of the page from the JSON that it has, in the colours of the page, and again where that JSON has changed.
(() => {
  const colour = (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const transparent = (own) => own.replace(/^rgb\((.*)\)$/, "rgba($1, 0.2)");
  const written = (figure) => figure.dataset.chart;
  const drawn = new WeakMap();
  const draw = (figure) => {
    const text = written(figure);
    const chart = JSON.parse(text);
    const place = figure.querySelector(".plot");
    drawn.set(place, text);
    // A plot that is kept while the page refreshes keeps its old description too.
    place.setAttribute("aria-label", figure.querySelector("figcaption").textContent);
    const [ink, quiet, line] = ["ink", "quiet", "line"].map(colour);
    const series = [1, 2, 3, 4, 5, 6].map((number) => colour(`series-${number}`));
    const narrow = place.clientWidth < 560;
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line, fixedrange: true };
    chart.data.forEach((trace) => {
      const look = trace.meta?.look;
      const own = look == null ? quiet : series[look % series.length];
      trace.marker = { ...trace.marker, color: own };
      if (trace.line) trace.line.color = own;
      if (trace.fill) trace.fillcolor = transparent(own);
      for (const bars of [trace.error_x, trace.error_y]) {
        if (bars) Object.assign(bars, { color: trace.type === "bar" ? ink : own, thickness: 1.6, width: 4 });
      }
    });
    const layout = chart.layout;
    (layout.shapes || []).forEach((shape) => (shape.line.color = quiet));
    Plotly.react(place, chart.data, {
      ...layout,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: 20, t: 8, b: 52 },
      xaxis: { ...axis, ...layout.xaxis, title: { ...layout.xaxis.title, font: { size: 13 } }, ...(narrow ? { nticks: 4 } : {}) },
      yaxis: { ...axis, automargin: true, ...layout.yaxis, zeroline: false, title: { ...layout.yaxis.title, font: { size: 13 } } },
      legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0 },
      dragmode: false,
    }, { displayModeBar: false, responsive: true });
  };
  const all = () => document.querySelectorAll("figure.chart").forEach(draw);
  document.addEventListener("farm:theme", all);
  // A part of the page that keeps itself fresh has new figures: see `data-keep` in live.js.
  document.addEventListener("htmx:afterSwap", () => {
    document.querySelectorAll("figure.chart").forEach((figure) => {
      if (drawn.get(figure.querySelector(".plot")) !== written(figure)) draw(figure);
    });
  });
  all();
})();
