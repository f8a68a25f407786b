"""One rank of a test's job: calls a function of the test module, and saves its return value."""

import importlib.util
import json
import os
import pickle
import signal
import sys
from pathlib import Path

import ringfold

# A shell that runs the tests in the background makes them ignore SIGINT, and Python keeps that
# setting.
signal.signal(signal.SIGINT, signal.default_int_handler)

path, name, result_path = sys.argv[1:]
# pytest also adds this path, for the modules beside the test.
sys.path.insert(0, str(Path(path).parent))
specification = importlib.util.spec_from_file_location("test_module", path)
assert specification is not None and specification.loader is not None
module = importlib.util.module_from_spec(specification)
sys.modules["test_module"] = module
specification.loader.exec_module(module)

communicator = ringfold.init(**json.loads(os.environ["TEST_INIT"]))
result = getattr(module, name)(communicator, **json.loads(os.environ["TEST_ARGUMENTS"]))
communicator.close()
Path(result_path).write_bytes(pickle.dumps(result))
