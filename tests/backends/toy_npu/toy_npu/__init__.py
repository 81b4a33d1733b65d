"""A stranger's back end for tvmstack."""
