"""`python -m tvmstack` is the `tvmstack` command."""

from tvmstack.cli import main

if __name__ == "__main__":
    main()
