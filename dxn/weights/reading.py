"""Read a checkpoint, and determine its family: a built-in one, or that of another package."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.metadata import entry_points

from dxn.core.errors import UserError
from dxn.weights.checkpoint import Checkpoint, read_checkpoint
from dxn.weights.families import FAMILIES
from dxn.weights.family import Family
from dxn.weights.own import OWN
from dxn.weights.public import PublicModel, shortened

ENTRY_POINTS = "dxn.families"


def read_public(
    source: str,
    *,
    revision: str | None = None,
    part: str | None = None,
    trust: Sequence[str] = (),
) -> PublicModel:
    """Read a checkpoint of a known family, or a model that was trained with dxn.

    Args:
        source: A file, a folder, or OWNER/NAME on the hub.
        revision: Branch, tag or commit on the hub. Default: the main branch.
        part: Modality of the tower to use, if a checkpoint has one tower per modality.
        trust: Top-level packages, in addition to dxn, whose classes config.yaml may refer to.

    Raises:
        UserError: If the checkpoint cannot be read, or if not exactly one family matches.
    """
    # `trust` has an effect only on models that were trained with dxn. The metadata of public
    # checkpoints does not refer to classes.
    checkpoint = read_checkpoint(source, revision=revision, trust=tuple(trust))
    try:
        family = _family_of(checkpoint, part)
    except (TypeError, ValueError, AttributeError) as error:
        raise _damaged(source, "a checkpoint", error) from error
    try:
        architecture = family.architecture(checkpoint)
        tensor_map = family.tensor_map(checkpoint, architecture)
    except UserError:
        raise
    # Families read required settings and tensors with [...]. A KeyError therefore means that the
    # checkpoint is incomplete.
    except KeyError as error:
        raise UserError(
            f"weights: {source}: looks like {family.name}, but neither its tensors nor its "
            f"config.json contain {error}; download it again"
        ) from error
    # Everything comes from the files of the checkpoint, so any other failure means that they are
    # damaged, or contradict each other.
    except Exception as error:
        raise _damaged(source, family.name, error) from error
    return PublicModel(checkpoint, family, architecture, tensor_map)


def _damaged(source: str, name: str, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    return UserError(
        f"weights: {source}: looks like {name}, but its tensors and its config.json do not fit "
        f"together ({type(error).__name__}: {error}); download it again"
    )


def _family_of(checkpoint: Checkpoint, part: str | None) -> Family:
    """Return the only family that matches, or the matching family that `part` selects."""
    # A model that was trained with dxn may also contain tensors with the names of a public family.
    if OWN.matches(checkpoint):
        return OWN
    families = all_families()
    matching = [family for family in families if family.matches(checkpoint)]
    if not matching:
        raise UserError(
            f"weights: {checkpoint.source}: does not belong to a supported family "
            f"({', '.join(family.name for family in families)}), got the tensors "
            f"{shortened(sorted(checkpoint.tensors))}; use another checkpoint, or add a family "
            "(docs/extend.md)"
        )
    if len(matching) > 1:
        selected = [family for family in matching if part is not None and family.part == part]
        if len(selected) != 1:
            names = " and ".join(family.name for family in matching)
            choices = [f"weights.part={family.part}" for family in matching if family.part]
            advice = f"; choose one with {' or '.join(choices)}" if choices else ""
            raise UserError(f"weights: {checkpoint.source}: contains {names}{advice}")
        matching = selected
    return matching[0]


def all_families() -> tuple[Family, ...]:
    """Return the families in `FAMILIES`, followed by those of installed packages.

    Raises:
        UserError: If an entry point cannot be loaded.
    """
    return (*FAMILIES, *_installed_families())


@functools.cache
def _installed_families() -> tuple[Family, ...]:
    """Load the entry points of the group "dxn.families", once per process."""
    # This function is called when the first checkpoint is read, not when dxn is imported, because
    # importing other packages may take long.
    families: list[Family] = []
    for entry_point in entry_points(group=ENTRY_POINTS):
        label = f"{ENTRY_POINTS}: {entry_point.name} = {entry_point.value}"
        try:
            family = entry_point.load()
        except Exception as error:  # importing another package can raise any exception
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"entry point {label}: cannot be loaded ({reason}); fix or uninstall the package"
            ) from error
        # Check the type here, so that the message contains the name of the entry point.
        if not isinstance(family, Family):
            raise UserError(
                f"entry point {label}: must be a dxn.weights.Family, got {type(family).__name__}; "
                "fix or uninstall the package"
            )
        families.append(family)
    return tuple(families)
