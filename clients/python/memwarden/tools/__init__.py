"""Commands of `python -m memwarden`; none is imported by a job."""
