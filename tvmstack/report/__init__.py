"""Terminal text for results. Each function takes plain data (what `--json` prints) and gives back a renderable."""
