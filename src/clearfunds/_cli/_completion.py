"""`clearfunds completion`: commands, options and their values in a shell."""

from typing import Annotated, Literal

from cyclopts import App, Parameter


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], Parameter(help="The shell: bash, zsh or fish.")
    ],
    /,
    *,
    app: Annotated[App, Parameter(parse=False)],
) -> int:
    """Print the script that completes commands and options in a shell.

    For bash: `clearfunds completion bash > ~/.local/share/bash-completion/completions/clearfunds`.
    For fish: `clearfunds completion fish > ~/.config/fish/completions/clearfunds.fish`.
    For zsh: `clearfunds completion zsh > DIRECTORY/_clearfunds`, with a directory of `$fpath`.
    """
    print(app.generate_completion(prog_name="clearfunds", shell=shell))
    return 0
