"""Reports about data: errors, warnings and the fingerprint."""
