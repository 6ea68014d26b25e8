"""Gradient noise, measured at a fixed policy, beside what B_eff predicts of it.

Importing this loads no torch; `rollonce.noise.gradients` does (extra ``train``).
"""
