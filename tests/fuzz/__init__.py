"""Hostile bytes for everything that decodes what is stored or configured."""
