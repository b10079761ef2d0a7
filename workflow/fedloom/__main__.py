"""`python -m fedloom <command>`: see fedloom.cli.main."""

from fedloom.cli.main import main

if __name__ == "__main__":
    main()
