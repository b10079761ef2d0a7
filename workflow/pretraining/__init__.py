"""How the micro backbones that ship were made. No study runs it."""
