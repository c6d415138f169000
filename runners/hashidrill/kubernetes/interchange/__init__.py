"""Translates experiments from and to the files of Chaos Mesh and Litmus, without a cluster.

It reports everything that it cannot translate: as lost if the rest still makes sense, otherwise as an error.
"""
