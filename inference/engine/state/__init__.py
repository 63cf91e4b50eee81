"""Memory of sequences: blocks of paged state and slots of recurrent state."""
