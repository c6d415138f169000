"""Translates experiments from and to the files of Chaos Mesh and Litmus. Asks no cluster.

Whatever it cannot translate it reports: as lost where the rest still makes sense, as an error where it does not.
"""
