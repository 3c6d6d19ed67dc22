"""`python -m batchgen`, the same as the command `batchgen`."""

from batchgen.cli.app import main

if __name__ == "__main__":
    main()
