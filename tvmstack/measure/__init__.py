"""Timing with statistics, peers in their own processes, machine peaks and profiles. Knows artifacts, never the compiler."""
