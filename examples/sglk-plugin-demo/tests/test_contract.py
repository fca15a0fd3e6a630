from sglk.testing.contract import backend_contract
from sglk_plugin_demo.backend import DemoBackend

TestDemoBackend = backend_contract(DemoBackend)
