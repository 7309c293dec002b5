"""The configuration of a command: compose it, check it, build its parts, describe it."""
