"""`python -m farm`: the command line, where the console script is not on the PATH."""

from farm.cli import main

if __name__ == "__main__":
    main()
