"""`python -m fedloom <command>`: see fedloom.commands.cli."""

from fedloom.commands.cli import main

if __name__ == "__main__":
    main()
