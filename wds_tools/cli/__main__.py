"""``python -m wds_tools.cli``."""

from wds_tools.cli import main

if __name__ == "__main__":
    main()
