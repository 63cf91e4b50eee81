"""Watch training runs: each complete checkpoint becomes a revision of one model, is measured, and can be promoted."""
