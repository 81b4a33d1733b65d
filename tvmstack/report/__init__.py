"""Terminal text for results. Each function takes a result's plain data (what `--json` prints) and gives back a renderable."""
