// Draws each chart of the page from the JSON beside it, in the colours of the page.
(() => {
  const colour = (name) => {
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const draw = (figure) => {
    const chart = JSON.parse(figure.querySelector("script[type='application/json']").textContent);
    const place = figure.querySelector(".plot");
    const [ink, quiet, line] = ["ink", "quiet", "line"].map(colour);
    const series = [1, 2, 3, 4, 5, 6].map((number) => colour(`series-${number}`));
    const narrow = place.clientWidth < 560;
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickcolor: line, fixedrange: true };
    chart.data.forEach((trace, number) => {
      const own = series[number % series.length];
      trace.marker = { ...trace.marker, color: own };
      if (trace.error_x) trace.error_x = { ...trace.error_x, color: trace.type === "bar" ? ink : own, thickness: 1.6, width: 4 };
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
      yaxis: { ...axis, automargin: true, ...layout.yaxis, showgrid: false, zeroline: false },
      legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0 },
      dragmode: false,
    }, { displayModeBar: false, responsive: true });
  };
  const all = () => document.querySelectorAll("figure.chart").forEach(draw);
  document.addEventListener("farm:theme", all);
  all();
})();
