"""Replication: leader to backups, elections, and what a cluster does when a broker goes.

`docs/replication.md` has the protocol and the argument; the modules here follow its words.
"""
