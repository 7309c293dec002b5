"""Data sources: tables, folders, archives, the hub, texts and values in memory."""
