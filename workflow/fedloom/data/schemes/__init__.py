"""Hold the schemes that divide training images over clients, one module for each.

A module has a class with the scheme's keys, and the function `divide(labels, settings, rng)`:

- `labels` [N] are the classes of the training images;
- `settings` is an entry of the config's `partitions`;
- `rng` is a generator of random numbers;
- the result is the client [N] of every image;
- a FedLoomError says that the keys do not fit the labels.

In place of `divide`, a module may have `groups(domains, settings)`, which returns groups of images
that are divided separately.
"""
