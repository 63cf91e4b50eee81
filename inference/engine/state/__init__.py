"""Allocate the memory of sequences: blocks of paged state and slots of recurrent state."""
