"""Exit code 0 if this interpreter's C extensions can be built here: a compiler and Python.h."""

import shutil
import sys
import sysconfig
from pathlib import Path

compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
header = Path(sysconfig.get_path("include"), "Python.h")
sys.exit(0 if header.exists() and (shutil.which(compiler) or shutil.which("cc")) else 1)
