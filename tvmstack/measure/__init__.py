"""Timing with statistics, peers in processes of their own, machine peaks, profiles. Never imports the compiler."""
