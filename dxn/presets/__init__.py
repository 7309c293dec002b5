"""Options that are chosen from the data, one module per modality."""

# The adapters use these modules, which use the adapters: either may be imported first.
import dxn.tokenize  # noqa: F401
