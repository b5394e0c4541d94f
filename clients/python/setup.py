"""What pyproject.toml cannot say: the license for every version of setuptools, and a file beside the package."""

import os

from setuptools import setup
from setuptools.command.build_py import build_py


class Build(build_py):
    """Adds memwarden.pth, which Python reads at its start, to the folder that holds the package."""

    def run(self):
        super().run()
        self.copy_file("memwarden.pth", os.path.join(self.build_lib, "memwarden.pth"))

    def get_outputs(self, *arguments, **named):
        return [*super().get_outputs(*arguments, **named), os.path.join(self.build_lib, "memwarden.pth")]


setup(license="Apache-2.0", cmdclass={"build_py": Build})
