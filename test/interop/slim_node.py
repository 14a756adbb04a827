"""Runs a real SLIM 3.x data-plane node from a YAML config until SIGTERM or SIGINT.

    python slim_node.py CONFIG.yaml

The same as slim-node.mjs: prints "ready pid=N" once the node's servers listen and it
has opened a stream to every control plane. Exit status: 0 after a signal, 1 if the
node did not start.
"""
import os
import signal
import sys
import threading

import slim_bindings

stopped = threading.Event()
try:
    slim_bindings.initialize_from_config_with_error(sys.argv[1])
except Exception as e:
    sys.exit(f"start failed: {e!r}")
# The bindings replace an invalid "services" section by an empty service without a
# word.
dataplane = slim_bindings.get_global_service().config().dataplane
if not dataplane.servers and not dataplane.clients:
    sys.exit('start failed: no dataplane server or client: is the "services" section valid?')
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stopped.set())
print(f"ready pid={os.getpid()}", flush=True)
while not stopped.wait(0.2):  # a handler runs only between two waits
    pass
try:
    slim_bindings.shutdown_blocking()
except Exception as e:
    print(f"shutdown: {e!r}", file=sys.stderr)
