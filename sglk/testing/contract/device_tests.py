"""What all groups of contract tests share: the backend under test."""

from typing import Any

import pytest

from sglk.backends.base import DeviceBackend
from sglk.errors import BackendError


class DeviceTests:
    """Tests of one backend."""

    def make_backend(self, **options: Any) -> DeviceBackend:
        """Return a new backend on the first device; `options` are further keywords of what makes it.

        Raises BackendError where there is no such device.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define make_backend")

    @pytest.fixture
    def backend(self) -> DeviceBackend:
        """The backend under test."""
        return self.device_or_skip()

    def device_or_skip(self) -> DeviceBackend:
        """Return a backend, or skip the test with the reason why there is none."""
        try:
            return self.make_backend()
        except BackendError as error:
            pytest.skip(str(error))
