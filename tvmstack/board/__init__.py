"""Boards: reach a device over TVM's RPC, prove that it is what it says, measure and run there under a clock.

TVM's tracker and session stay the engine. Knows kernels as compiled libraries and artifacts as
files; neither models nor search.
"""
