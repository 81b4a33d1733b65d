"""What every room may import: errors, the device, the model, verdicts. It knows only the standard library and numpy."""
