"""Programs that use an exported model without dxn. `dxn export` copies them to its folder."""
