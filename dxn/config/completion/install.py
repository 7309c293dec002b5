"""Write the completion script of a shell to the home folder."""

from __future__ import annotations

import os
from pathlib import Path

from dxn.config.completion.candidates import SHELLS
from dxn.core.errors import UserError
from dxn.core.files import write_text

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
        return [f"written: {path}", "open a new terminal to use it"]
    path = _base("XDG_DATA_HOME", ".local/share") / "dxn" / f"completion.{shell}"
    write_text(path, script)
    startup = _startup_file(shell)
    line = f'[ -f "{path}" ] && . "{path}"'
    # Bytes, because the file of the user can have any encoding.
    added = os.fsencode(line)
    text = startup.read_bytes() if startup.is_file() else b""
    lines = [f"written: {path}"]
    if added not in text.splitlines():
        # Appended, and not replaced as a whole: the file may be a link into a folder of settings.
        separator = b"" if text.endswith(b"\n") or not text else b"\n"
        with startup.open("ab") as file:
            file.write(separator + added + b"\n")
        lines.append(f"added a line to {startup}")
    return [*lines, "open a new terminal to use it"]


def _base(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default)


def _startup_file(shell: str) -> Path:
    folder = os.environ.get("ZDOTDIR") if shell == "zsh" else None
    return Path(folder or Path.home()) / f".{shell}rc"
