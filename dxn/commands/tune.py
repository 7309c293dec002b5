"""The command `dxn tune`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Gt

from dxn.commands.options import Count, check_paths
from dxn.commands.train import Train
from dxn.config.command import Options
from dxn.config.settings import Settings
from dxn.core.errors import UserError

# Options of a training that name the folder of the search, and not those of its trials.
FOLDERS = ("name", "output", "run")


@dataclass(frozen=True, kw_only=True)
class Tune(Train):
    """Search the options of a training that are best for the validation split.

    Args:
        trials: Number of trials (default: 20 without minutes; all combinations of a grid).
        minutes: Time limit of this command. The trial that then runs is stopped after its epoch.
        sampler: tpe learns from earlier trials which values are good; grid tries all combinations.
        prune: Stop bad trials early by Hyperband (default: true; false for a grid or for seeds).
        storage: URL of a database that several machines share (default: study.db in the folder).
        space: YAML file with further options to search: ranges such as 2..6 and lists.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn tune reviews.csv target=label optimizer.lr=1e-4..1e-2:log backbone.depth=2..6",
        "dxn tune reviews.csv target=label head.dropout=0,0.1,0.3 trials=50 minutes=60",
        "dxn tune reviews.csv target=label sampler=grid seed=1,2,3 backbone=nano,tiny",
        "dxn tune reviews.csv target=label space=space.yaml run=outputs/search",
    )

    trials: Count | None = None
    minutes: Annotated[float, Gt(0)] | None = None
    sampler: Literal["tpe", "grid"] = "tpe"
    prune: bool | None = None
    storage: str | None = None
    space: str | None = None

    @classmethod
    def compose(cls, words: Sequence[str] = ()) -> Self:
        """Return the command, after all values that a trial can have were checked."""
        # The modules import Hydra, which the help pages do not need.
        from dxn.config.compose import compose
        from dxn.config.space import covering, split, with_types, words_of

        if any(word.startswith(("resume=", "resume.")) for word in words):
            raise UserError(
                "resume: to continue a search, run the same command again with run=FOLDER"
            )
        files = [word.partition("=")[2] for word in words if word.startswith("space=")]
        typed = {word.partition("=")[0] for word in words}
        below = [word for file in files for word in words_of(Path(file).expanduser())]
        words = [*(word for word in below if word.partition("=")[0] not in typed), *words]
        fixed, space = split(words)
        excluded = {*cls._own(), *FOLDERS}
        if several := [option for option in space if option.key in excluded]:
            raise UserError(
                "\n".join(
                    f"{option.key}: must be one value, got {option.word}" for option in several
                )
            )
        commands = [cls.of(compose(cls, [*fixed, *values])) for values in covering(space)]
        if commands[0].prune and any(option.key == "seed" for option in space):
            raise UserError(
                "prune: cannot be true if seed is searched, because the mean over all seeds of a "
                "setting counts"
            )
        largest = max(command.ensemble for command in commands)
        if largest > 1:
            raise UserError(
                f"ensemble: must be 1 in a search, got {largest}; train an ensemble with the best "
                "options afterwards"
            )
        with_types(space, cls, commands[0].settings)
        return cls.of(replace(commands[0].settings, overrides=tuple(words)))

    def execute(self) -> int:
        """Run the trials, and evaluate the best one on the test split."""
        if find_spec("optuna") is None:
            raise UserError(
                "tune: needs optuna, which is not installed; run pip install 'dxn[tune]'"
            )
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise UserError(
                "tune: a trial uses one process; instead of torchrun, start the same command "
                "several times with the same run=FOLDER or storage=URL"
            )
        from dxn.config.space import split, with_types
        from dxn.core.display import next_step
        from dxn.runs.tune import tune

        words, space = split(self.settings.overrides)
        excluded = {*self._own(), *FOLDERS}
        fixed = [word for word in words if word.partition("=")[0] not in excluded]

        def settings_of(words: Sequence[str]) -> Settings:
            return check_paths(Train.compose(words)).settings

        space = with_types(space, Tune, self.settings)
        for words in tune(self.settings, fixed, space, settings_of):
            next_step("dxn", *words)
        return 0

    @classmethod
    def options(cls) -> Options:
        """Return the options of a training except for `resume`, which `compose` refuses."""
        options = super().options()
        names = [key for key in options.by_key if key.partition(".")[0] != "resume"]
        return replace(options, by_key={key: options.by_key[key] for key in names})

    @classmethod
    def _own(cls) -> set[str]:
        """Return the options that a training does not have."""
        return set(cls.options().by_key) - set(Train.options().by_key)
