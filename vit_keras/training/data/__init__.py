"""Images and labels for training: folders and tables, decoded once, divided, augmented and sampled."""
