"""`worldstream plan`: a world's bytes, and the sessions that fit a device."""
