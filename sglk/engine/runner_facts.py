"""What an engine tells of its model and device: read-only, from any thread."""

from collections.abc import Mapping

from sglk.engine.batch import Runner
from sglk.engine.op_report import OpReport


class RunnerFacts:
    """The facts of a runner."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to one less."""
        return self._runner.vocab_size

    @property
    def weights_bytes(self) -> int:
        """Device memory that the weights hold."""
        return self._runner.weights_bytes

    @property
    def dtype(self) -> str:
        """What the model computes in, such as `fp32`."""
        return self._runner.dtype

    @property
    def kv_cache_dtype(self) -> str:
        """What the KV pool holds."""
        return self._runner.kv_cache_dtype

    @property
    def quantization(self) -> str | None:
        """How the model's weights are quantised, asked for or as its checkpoint has them; None = not at all."""
        return self._runner.quantization

    @property
    def device_info(self) -> Mapping[str, str]:
        """What the machine calls the device."""
        return self._runner.device_info

    @property
    def simulated(self) -> bool:
        """Whether the device is a simulated one: its times come from peak figures, and its answers mean nothing."""
        return self.device_info.get("simulated") == "true"

    def peak_memory_bytes(self) -> int:
        """Return the most device memory held since the start."""
        return self._runner.peak_memory_bytes()

    def op_report(self) -> OpReport:
        """Return who runs which op, what was switched off and what went wrong."""
        return self._runner.op_report()
