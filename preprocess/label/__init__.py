"""Conversations -> tokens of which only the wanted turns are learned, several of them in a pack."""
