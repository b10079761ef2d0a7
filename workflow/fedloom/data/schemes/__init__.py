"""Hold the schemes that divide training images over clients, one module for each.

A module has a class of its keys, and `divide(labels, settings, rng)`: from the labels [N] of the
training images, an entry of the config's `partitions` and a stream of random numbers to the client
[N] of every image. It raises a FedLoomError where the keys do not fit the labels. Instead it may
have `groups(domains, settings)`, which returns the groups that are divided by themselves.
"""
