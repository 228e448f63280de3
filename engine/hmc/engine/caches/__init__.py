"""Keys and values of running sentences: the decoder's caches on a CPU or a device, behind one interface (`Caches`)."""
