"""Timing with statistics, peers in their own processes, machine peaks, profiles. Knows artifacts, never the compiler."""
