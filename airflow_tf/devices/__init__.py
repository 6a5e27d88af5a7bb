"""Device kinds and the host-wide locks that exclude two users of one device. Nothing here ever uses a device."""
