"""Learned discrete tokens of pictures, sounds, series and clips, and the way back."""
