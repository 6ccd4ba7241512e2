"""Audits: lower bounds on epsilon, measured on whole runs. Above every stage, below the front ends."""
