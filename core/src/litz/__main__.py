"""`python -m litz` is `litz`: for torchrun and others that start modules."""

from litz.cli.main import main

if __name__ == "__main__":
    main(prog_name="litz")
