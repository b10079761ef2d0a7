"""The schemes that divide training images over clients: one module per scheme.

A module has a class of its keys, and `divide(labels, settings, rng)`: from the labels [N] of the
training images, an entry of the config's `partitions` and a stream of random numbers to the client
[N] of every image. It may have `groups(domains, settings)` instead, which says what is divided by
itself, and how.
"""
