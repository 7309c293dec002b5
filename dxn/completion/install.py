"""Write the completion script of a shell to the home folder."""

from __future__ import annotations

import os
from pathlib import Path

from dxn.completion.candidates import SHELLS
from dxn.errors import UserError
from dxn.files import write_text

SCRIPTS = Path(__file__).with_name("shells")


def install(words: list[str]) -> list[str]:
    """Install the completion.

    Args:
        words: Name of the shell, or nothing: the shell of the user.

    Returns:
        Lines that say what was written.

    Raises:
        UserError: If dxn has no completion for this shell.
    """
    shell = words[0] if words else Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS or len(words) > 1:
        raise UserError(
            f"--install-completion: must be one of {', '.join(SHELLS)}, got "
            f"{' '.join(words) or shell or 'no shell'}; name one, such as --install-completion bash"
        )
    script = (SCRIPTS / shell).read_text(encoding="utf-8")
    if shell == "fish":
        # fish reads all files of this folder.
        path = _base("XDG_CONFIG_HOME", ".config") / "fish" / "completions" / "dxn.fish"
        write_text(path, script)
        return [f"written: {path}", "next: open a new terminal"]
    path = _base("XDG_DATA_HOME", ".local/share") / "dxn" / f"completion.{shell}"
    write_text(path, script)
    startup = _startup_file(shell)
    line = f'[ -f "{path}" ] && . "{path}"'
    text = startup.read_text(encoding="utf-8") if startup.is_file() else ""
    lines = [f"written: {path}"]
    if line not in text.splitlines():
        # Appended, and not replaced as a whole: the file may be a link into a folder of settings.
        with startup.open("a", encoding="utf-8") as file:
            file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
        lines.append(f"added a line to {startup}")
    return [*lines, "next: open a new terminal"]


def _base(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default)


def _startup_file(shell: str) -> Path:
    folder = os.environ.get("ZDOTDIR") if shell == "zsh" else None
    return Path(folder or Path.home()) / f".{shell}rc"
