"""The analyses of a report. Importing this package imports all its modules, which register themselves."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
