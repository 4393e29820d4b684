"""Target brev: containers on instances of Brev."""
