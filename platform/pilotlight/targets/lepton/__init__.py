"""Target lepton: endpoints of a DGX Cloud Lepton workspace."""
