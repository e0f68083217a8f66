"""`python -m fuselint`."""

from fuselint.cli import main

if __name__ == "__main__":
    main(prog_name="fuselint")
