"""What every package uses: tokens, errors, files, checks of untrusted files, the console."""
