"""Training: one readable loop (`rollonce.training.loop`), the arms it compares, and what is said about them afterwards.

Importing this loads no torch; the loop does (extra ``train``).
"""
