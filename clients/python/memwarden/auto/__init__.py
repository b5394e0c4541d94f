"""The folder that PYTHONPATH names to instrument programs; memwarden.pth imports it as a package."""
