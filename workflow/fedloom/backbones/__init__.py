"""Frozen backbones. The only place that knows the insides of timm.

Shapes, everywhere: K clients in a cohort, B batch, T tokens, P prompts, d width, C classes,
M blocks (numbered from 1), L text length.
"""
