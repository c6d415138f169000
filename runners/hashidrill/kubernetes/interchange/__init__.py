"""Translates experiments from and to the files of Chaos Mesh, Litmus and Chaos Toolkit, without a cluster.

It reports everything that it cannot translate: as lost if the rest still makes sense, otherwise as an error.
"""
