"""What pyproject.toml cannot say: the extension for quick calls, which is left
out where no compiler is, and dil's version. Both follow from dilrt.h: in the
tree, in the folder DIL_INCLUDE, or where an installed dil has it.

    pip install ./examples/python        # DIL_LIBRARY names the library of a build
    pip install -e ./examples/python     # finds that of this tree's build
"""

import glob
import os
import re
import subprocess

from setuptools import Extension, setup


def installed_folder():
    try:
        told = subprocess.run(["pkg-config", "--variable=includedir", "dilrt"],
                              capture_output=True, text=True)
    except OSError:
        return None
    return os.path.join(told.stdout.strip(), "dil")


def include_folder():
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.environ.get("DIL_INCLUDE"), os.path.join(here, "include"),
              os.path.join(here, "..", "..", "runtime"),
              installed_folder(), "/usr/local/include/dil", "/usr/include/dil"]
    for place in places:
        if place and os.path.exists(os.path.join(place, "dilrt.h")):
            return place
    raise SystemExit("there is no dilrt.h: DIL_INCLUDE names its folder")


def version(folder):
    with open(os.path.join(folder, "dilrt.h")) as header:
        return re.search('DIL_VERSION "(.*)"', header.read())[1]


include = include_folder()
wheel = {"py_limited_api": "cp310"}
if "DIL_WHEEL_PLATFORM" in os.environ:  # of `make wheel`
    wheel["plat_name"] = os.environ["DIL_WHEEL_PLATFORM"]
setup(version=version(include), packages=["dil", "dil.torch"],
      package_data={"dil": ["lib/*"]},
      ext_modules=[Extension("dil._call", sorted(glob.glob("dil/_call*.c")),
                             depends=["dil/_call.h"], optional=True,
                             include_dirs=[include], py_limited_api=True,
                             extra_compile_args=["-std=c11",
                                                 "-fvisibility=hidden"])],
      options={"bdist_wheel": wheel})
