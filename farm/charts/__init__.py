"""Charts: one description as data, and renderers for Plotly, matplotlib and the terminal."""
