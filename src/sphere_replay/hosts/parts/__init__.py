"""What hosts are made of: losses, mixtures, and the fit to a memory."""
