"""The C library and packages without Python."""
