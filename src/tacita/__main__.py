"""``python -m tacita`` is the command ``tacita``."""

from tacita.cli import main

if __name__ == "__main__":
    main()
