"""`python -m luminal`: the command line."""

from luminal.cli import main

if __name__ == "__main__":
    main()
