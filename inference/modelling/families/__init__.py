"""Model families: a module each turns a checkpoint's config and tensor names into a ModelSpec."""
