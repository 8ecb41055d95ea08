"""Runs torchrun with a function in the place of a command, so that its agent forks the ranks.

The agent, its rendezvous and the environment of the ranks are those of torchrun. Only Python is not started again for
each rank, where importing torch and torchvision would take most of the time.
"""

import runpy
import sys

from torch.distributed import run


def program(*words: str) -> None:
    """Run a program, given its file name and arguments, as Python does."""
    sys.argv = [*words]
    runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    """Parse the command line of torchrun, and let its agent run the program."""
    args = run.parse_args(
        ["--start-method", "fork", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *sys.argv[1:]]
    )
    config, _, _ = run.config_from_args(args)
    run.elastic_launch(config, program)(args.training_script, *args.training_script_args)


if __name__ == "__main__":
    main()
